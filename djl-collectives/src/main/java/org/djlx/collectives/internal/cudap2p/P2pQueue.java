/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.Operation;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.gpu.EventPool;
import org.djlx.collectives.internal.gpu.LongCalls;
import org.djlx.collectives.internal.gpu.Watchdog;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.CurrentStreams;

/**
 * Runs the operations that need no NCCL on the callers' current streams, one after the other
 * whatever the streams, and ends them if something goes wrong.
 *
 * <p>The host does not wait for those of other ranks: it publishes what it calls and enqueues it.
 * Calls that differ are found behind, by whoever calls last or by the watchdog, and break the group
 * on all ranks. If calls are to be verified, the hosts agree before anything is enqueued, and the
 * group goes on.
 */
final class P2pQueue implements Watchdog.Queue {

    // Reads files for each rank, at leisure.
    private static final long LOOK_NANOS = 100_000_000;

    private final GroupContext context;
    private final CudaDevice device;
    private final boolean blockingWait;
    private final boolean verify;
    private final HostSync hosts;
    private final WaitStatus waits;
    private final Consumer<CollectiveException> onBreak;
    private final EventPool events;
    private final CurrentStreams currentStreams;
    private final CudaEvent last; // behind the operation before
    private final Watchdog watchdog;
    private volatile boolean replayed; // an operation is in a graph
    private volatile long looked = System.nanoTime(); // for dead peers
    private volatile CollectiveException broken;

    /**
     * Creates the queue.
     *
     * @param context the group and the rank
     * @param device the rank's GPU
     * @param blockingWait whether waiting for a work blocks the host
     * @param verify whether the ranks agree on a call before it is enqueued
     * @param hosts the other ranks' hosts
     * @param currentStreams the callers' streams, closed with the queue
     * @param waits what operations wait in
     * @param onBreak told when the queue breaks
     */
    P2pQueue(
            GroupContext context,
            CudaDevice device,
            boolean blockingWait,
            boolean verify,
            HostSync hosts,
            CurrentStreams currentStreams,
            WaitStatus waits,
            Consumer<CollectiveException> onBreak) {
        this.context = context;
        this.device = device;
        this.blockingWait = blockingWait;
        this.verify = verify;
        this.hosts = hosts;
        this.waits = waits;
        this.onBreak = onBreak;
        this.currentStreams = currentStreams;
        events = new EventPool(device);
        last = CudaEvent.create(device);
        watchdog =
                new Watchdog("cuda_p2p-" + context.name() + "-rank-" + context.rank(), new Alone());
    }

    /** Enqueues an operation. */
    @FunctionalInterface
    interface Body {

        /**
         * Enqueues it, with the GPU's context current.
         *
         * @param stream where
         * @param captured whether the stream is recorded into a graph
         */
        void enqueue(CudaStream stream, boolean captured);
    }

    /** There is one queue. */
    private final class Alone implements Watchdog.Group {

        @Override
        public Collection<? extends Watchdog.Queue> failingWith(Watchdog.Queue queue) {
            return List.of(P2pQueue.this);
        }

        @Override
        public Collection<? extends Watchdog.Queue> queues() {
            return List.of(P2pQueue.this);
        }

        @Override
        public Optional<CollectiveException> problem() {
            return P2pQueue.this.problem();
        }
    }

    /** What keeps operations of the group from ever ending well, if anything. */
    Optional<CollectiveException> problem() {
        CollectiveMismatchException difference = hosts.difference();
        if (difference != null) {
            return Optional.of(difference);
        }
        if (System.nanoTime() - looked < LOOK_NANOS) {
            return Optional.empty();
        }
        looked = System.nanoTime();
        return Optional.ofNullable(hosts.brokenRank())
                .map(text -> new CollectiveException(text + "; the group is broken"));
    }

    EventPool events() {
        return events;
    }

    boolean isBlockingWait() {
        return blockingWait;
    }

    CurrentStreams currentStreams() {
        return currentStreams;
    }

    /**
     * Runs an operation.
     *
     * @param operation the operation
     * @param body enqueues it
     * @param result its outputs
     * @return the work
     */
    Work run(Operation operation, Body body, List<NDArray> result) {
        checkUsable(operation);
        return device.within(
                () -> {
                    CudaStream current = currentStreams.get();
                    if (current.isCapturing()) {
                        CollectiveException refused = announce(operation, true);
                        if (refused != null) {
                            throw refused;
                        }
                        return capture(operation, current, body, result);
                    }
                    // Made before the others are told: it holds the arrays, which can fail.
                    StreamWork work = new StreamWork(this, current, operation, result);
                    CollectiveException refused = announce(operation, false);
                    if (refused == null) {
                        enqueue(work, current, body);
                    } else {
                        work.fail(refused);
                    }
                    return work;
                });
    }

    /**
     * Tells the other ranks of an operation that NCCL runs, and orders it behind those here.
     *
     * @param operation the operation
     * @param result its outputs
     * @return a work that has failed, if the ranks' calls differ; otherwise null
     */
    Work precede(Operation operation, List<NDArray> result) {
        checkUsable(operation);
        return device.within(
                () -> {
                    CudaStream current = currentStreams.get();
                    boolean captured = current.isCapturing();
                    CollectiveException refused = announce(operation, captured);
                    if (refused == null) {
                        if (!captured) {
                            current.waitEvent(last);
                        }
                        return null;
                    }
                    if (captured) {
                        throw refused;
                    }
                    StreamWork work = new StreamWork(this, current, operation, result);
                    work.fail(refused);
                    return work;
                });
    }

    private void checkUsable(Operation operation) {
        if (broken != null) {
            throw GroupErrors.broken(operation, broken);
        }
    }

    /** Tells the others what is called; returns why it must not be enqueued, or null. */
    private CollectiveException announce(Operation operation, boolean captured) {
        try {
            if (verify) {
                hosts.agree(operation);
            }
            hosts.publish(operation, captured);
            return null;
        } catch (CollectiveException e) {
            boolean usable =
                    e instanceof CollectiveMismatchException calls && !calls.isGroupBroken();
            if (!usable && captured) {
                // What waits for the GPU would spoil the capture, before its user learns why.
                LongCalls.start("cuda_p2p-broken-" + context.name(), () -> fail(e));
            } else if (!usable) {
                fail(e);
            }
            return e;
        }
    }

    private void enqueue(StreamWork work, CudaStream current, Body body) {
        Operation operation = work.operation();
        try {
            operation.started();
            current.waitEvent(last);
            body.enqueue(current, false);
            last.record(current);
            work.recordEnd(current);
        } catch (RuntimeException | Error e) {
            // The other ranks run theirs, and wait for what this one did not enqueue.
            CollectiveException reason = GroupErrors.failed(operation, e);
            fail(reason);
            work.fail(reason);
            return;
        }
        watchdog.add(work);
        if (broken != null && watchdog.remove(work) && work.seal(broken)) {
            // Whoever broke the queue did not see the work.
            work.complete(false);
        }
    }

    /** Puts an operation into the graph that the current stream is recorded into. */
    private Work capture(Operation operation, CudaStream current, Body body, List<NDArray> result) {
        operation.started();
        operation.keepGroup();
        try {
            body.enqueue(current, true);
            current.keepAlive(result.toArray(new NDArray[0]));
        } catch (RuntimeException | Error e) {
            operation.ended(e);
            throw e;
        }
        operation.ended(null);
        if (!replayed) {
            replayed = true;
            watchdog.keepVigil(this);
        }
        return new CapturedWork(result);
    }

    /** Why an operation failed that has ended; null if it did not. */
    CollectiveException failureOf(Operation operation) {
        return waits.failure(operation);
    }

    /** Tells also what went wrong in a kernel that a graph replayed. */
    @Override
    public Optional<String> error() {
        List<Integer> missing = waits.missing();
        return missing.isEmpty()
                ? Optional.empty()
                : Optional.of(GroupErrors.ranks(missing) + " did not arrive");
    }

    @Override
    public List<Integer> missing() {
        return hosts.behind();
    }

    /** Breaks the group, as something else of it has failed. */
    void fail(CollectiveException reason) {
        watchdog.fail(List.of(this), reason);
    }

    @Override
    public boolean breakWith(CollectiveException reason) {
        synchronized (this) {
            if (broken != null) {
                return false;
            }
            broken = reason;
        }
        hosts.fail(reason.getMessage());
        hosts.end();
        return true;
    }

    /** Lets everything go on that waits for other ranks, what graphs replay included. */
    @Override
    public void abort() {
        waits.stop();
        // What waits for it may be NCCL's, whose abort waits for that.
        onBreak.accept(broken);
        device.synchronize();
    }

    /** Makes the host's waits for other ranks fail; any thread may call it. */
    void end() {
        hosts.end();
    }

    /** Ends what is under way. */
    void stop() {
        if (!watchdog.isIdle()) {
            watchdog.fail(List.of(this), GroupErrors.groupDestroyed(context.name()));
        }
        watchdog.close();
        waits.stop(); // Nobody knows what graphs still do.
    }

    /** Frees everything, after {@link #stop}. */
    void close() {
        device.synchronize();
        events.close();
        currentStreams.close();
        last.close();
    }
}
