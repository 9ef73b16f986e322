/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.gpu.EventPool;
import org.djlx.collectives.internal.gpu.LongCalls;
import org.djlx.collectives.internal.gpu.Watchdog;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.internal.nccl.Batch;
import org.djlx.collectives.internal.nccl.NcclBackend;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.slf4j.LoggerFactory;

/**
 * Runs operations on the callers' current streams, in their turn among those of the group's own
 * stream, and ends what waits for other ranks if something goes wrong.
 *
 * <p>The host does not wait for those of other ranks: it publishes what it calls and enqueues it.
 * Calls that differ are found behind, by whoever calls last or by the watchdog, and break the group
 * on all ranks. If calls are to be verified, the hosts agree before anything is enqueued, and the
 * group goes on.
 */
final class P2pQueue implements NcclBackend.Companion {

    // Reads files for each rank, at leisure.
    private static final long LOOK_NANOS = 100_000_000;

    private static final Set<P2pQueue> OPEN = new HashSet<>(); // guarded by itself

    static {
        try {
            Runtime.getRuntime().addShutdownHook(new Thread(P2pQueue::exit, "cuda_p2p-exit"));
        } catch (IllegalStateException e) {
            LoggerFactory.getLogger(P2pQueue.class).debug("the JVM is about to end", e);
        }
    }

    private final GroupContext context;
    private final CudaDevice device;
    private final boolean blockingWait;
    private final boolean verify;
    private final HostSync hosts;
    private final WaitStatus waits; // closed after this
    private final NcclBackend nccl; // has the group's stream, and watches over all operations
    private final EventPool events;
    private final CurrentStreams currentStreams;
    private final CudaEvent before; // behind what the group's stream had been given before one
    private long launches; // of the group's stream that were before; guarded by the group's lock
    private StreamWork last; // the last one here, or null; guarded by the group's lock
    private boolean joined; // whether the group's stream has waited for it; likewise
    private volatile long called; // the number of the last operation of which the others know
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
     * @param nccl runs the group's other operations
     */
    P2pQueue(
            GroupContext context,
            CudaDevice device,
            boolean blockingWait,
            boolean verify,
            HostSync hosts,
            CurrentStreams currentStreams,
            WaitStatus waits,
            NcclBackend nccl) {
        this.context = context;
        this.device = device;
        this.blockingWait = blockingWait;
        this.verify = verify;
        this.hosts = hosts;
        this.waits = waits;
        this.nccl = nccl;
        this.currentStreams = currentStreams;
        events = new EventPool(device);
        before = CudaEvent.create(device);
        synchronized (OPEN) {
            OPEN.add(this);
        }
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

    @Override
    public Optional<CollectiveException> problem(Operation first) {
        CollectiveMismatchException difference = hosts.difference();
        if (difference != null) {
            return Optional.of(difference);
        }
        if (System.nanoTime() - looked < LOOK_NANOS) {
            return Optional.empty();
        }
        looked = System.nanoTime();
        String failed = hosts.brokenRank(); // It may have destroyed the group for that.
        if (failed != null) {
            return Optional.of(GroupErrors.brokenBy(failed));
        }
        String departed = first == null ? null : hosts.departedBefore(first);
        return departed == null
                ? Optional.empty()
                : Optional.of(GroupErrors.gone(first, context.rank(), departed));
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
     * Runs an operation on the caller's current stream, or puts it into the graph that this is
     * recorded into. With the GPU's context current.
     *
     * @param operation the operation
     * @param current the stream
     * @param body enqueues it
     * @param result its outputs
     * @return the work
     */
    Work run(Operation operation, CudaStream current, Body body, List<NDArray> result) {
        if (current.isCapturing()) {
            return capture(operation, current, body, result);
        }
        StreamWork work = new StreamWork(this, current, operation, result);
        CollectiveException refused = announce(operation, false);
        if (refused == null) {
            work.hold();
            enqueue(work, current, body);
        } else {
            work.fail(refused);
        }
        return work;
    }

    @Override
    public boolean comparesSignatures() {
        return true;
    }

    /** Tells the others what is called; returns why it must not be enqueued, or null. */
    @Override
    public CollectiveException announce(Operation operation, boolean captured) {
        if (broken != null) {
            throw GroupErrors.broken(operation, broken);
        }
        try {
            if (verify) {
                hosts.agree(operation, captured);
            }
            hosts.publish(operation, captured);
            called = operation.sequence();
            return null;
        } catch (RuntimeException | Error e) {
            CollectiveException reason = GroupErrors.failed(operation, e);
            boolean usable =
                    e instanceof CollectiveMismatchException calls && !calls.isGroupBroken();
            if (!usable && captured) {
                // What waits for the GPU would spoil the capture, before its user learns why.
                LongCalls.start("cuda_p2p-broken-" + context.name(), () -> nccl.breakWith(reason));
            } else if (!usable) {
                nccl.breakWith(reason);
            }
            return reason;
        }
    }

    private void enqueue(StreamWork work, CudaStream current, Body body) {
        Operation operation = work.operation();
        try {
            operation.started();
            follow(current);
            body.enqueue(current, false);
            work.recordEnd(current);
            last = work;
            joined = false;
            if (Batch.isAnyOpen()) {
                join(); // What the batch has yet to start was issued before, and comes behind.
            }
        } catch (RuntimeException | Error e) {
            // The other ranks run theirs, and wait for what this one did not enqueue.
            CollectiveException reason = GroupErrors.failed(operation, e);
            nccl.breakWith(reason);
            work.fail(reason);
            return;
        }
        Watchdog watchdog = nccl.watchdog();
        watchdog.add(work);
        if (broken != null && watchdog.remove(work) && work.seal(broken)) {
            // Whoever broke the queue did not see the work.
            work.complete(false);
        }
    }

    /**
     * Lets a stream wait for the operations before, on whatever streams. If the group's stream was
     * given nothing since the last one here, that one is all to wait for; otherwise the group's
     * stream waits for it, too. While NCCL still connects ranks for what was called before, the
     * host waits for that: see {@link Rendezvous}.
     */
    private void follow(CudaStream current) {
        long launched = nccl.awaitLaunched();
        if (launched == launches) {
            if (last != null) {
                last.order(current);
            }
        } else {
            join(); // It was enqueued before the last one here, if that was within a batch.
            before.record(nccl.stream());
            current.waitEvent(before);
            launches = launched;
        }
    }

    @Override
    public void join() {
        if (last != null && !joined) {
            last.order(nccl.stream());
            joined = true;
        }
    }

    private Work capture(Operation operation, CudaStream current, Body body, List<NDArray> result) {
        CollectiveException refused = announce(operation, true);
        if (refused != null) {
            throw refused;
        }
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
            nccl.watchdog().keepVigil(this);
        }
        return new CapturedWork(result);
    }

    /**
     * Also if nobody was missing in it, what an operation has read may be wrong: a rank that has
     * waited in vain goes on when it has told, and may overwrite that. So an operation that was
     * right fails, too, if that is known before this host has seen its end.
     */
    @Override
    public CollectiveException failureOf(Operation operation) {
        CollectiveException failure = waits.failure(operation);
        if (failure != null) {
            return failure;
        }
        String failed = hosts.failedRank();
        return failed == null ? null : GroupErrors.brokenBy(failed);
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
        return hosts.slowestRanks();
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
        device.synchronize();
    }

    /** Makes the host's waits for other ranks fail; any thread may call it. */
    void end() {
        hosts.end();
    }

    private static void exit() {
        synchronized (OPEN) {
            OPEN.forEach(P2pQueue::release);
        }
    }

    /**
     * When the process exits, the driver waits for kernels that run: none must wait. What is behind
     * them may then overwrite what other ranks read, which know of it first.
     */
    private void release() {
        try {
            if (!nccl.watchdog().isDone()) {
                hosts.fail("its process exits within operations");
            }
        } finally {
            waits.stop();
        }
    }

    /** Tells the other ranks that this one calls nothing more. */
    void endCalls() {
        hosts.endCalls(called);
    }

    /** Frees everything, when nothing is enqueued any more. */
    void close() {
        synchronized (OPEN) {
            OPEN.remove(this);
        }
        device.synchronize();
        events.close();
        currentStreams.close();
        before.close();
    }
}
