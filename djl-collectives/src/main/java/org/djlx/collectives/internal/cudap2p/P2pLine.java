/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.Operation;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.gpu.CurrentStreams;
import org.djlx.collectives.internal.gpu.EventPool;
import org.djlx.collectives.internal.gpu.LongCalls;
import org.djlx.collectives.internal.gpu.Watchdog;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaException;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Runs the operations that need no NCCL on the callers' current streams, one after the other
 * whatever the streams, and ends them if something goes wrong.
 */
final class P2pLine implements Watchdog.Line {

    // Reads files for each rank, at leisure.
    private static final long LOOK_NANOS = 100_000_000;
    // Often at first, while launched graphs wait, then for what may still be launched.
    private static final long MIN_RELEASE_NANOS = 200_000;
    private static final long MAX_RELEASE_NANOS = 10_000_000;
    private static final Duration REPLAY_PATIENCE = Duration.ofSeconds(1);
    private static final Logger logger = LoggerFactory.getLogger(P2pLine.class);

    private final GroupContext context;
    private final CudaDevice device;
    private final boolean blockingWait;
    private final HostSync hosts;
    private final CudaP2pBuffers buffers;
    private final P2pAllReduce allReduce;
    private final Consumer<CollectiveException> onBreak;
    private final NDManager manager;
    private final EventPool events;
    private final CurrentStreams currentStreams;
    private final CudaEvent last; // behind the operation before
    private final Watchdog watchdog;
    private volatile Replays replays; // once an operation is in a graph
    private Thread releaser; // guarded by this
    private volatile boolean freed;
    private long looked = System.nanoTime(); // for dead peers
    private volatile CollectiveException broken;

    /**
     * Creates the line.
     *
     * @param context the group and the rank
     * @param device the rank's GPU
     * @param blockingWait whether waiting for a work blocks the host
     * @param hosts the other ranks' hosts
     * @param buffers what operations wait in
     * @param currentStreams the callers' streams, closed with the line
     * @param allReduce what operations wait in
     * @param onBreak told when the line breaks
     */
    P2pLine(
            GroupContext context,
            CudaDevice device,
            boolean blockingWait,
            HostSync hosts,
            CudaP2pBuffers buffers,
            CurrentStreams currentStreams,
            P2pAllReduce allReduce,
            Consumer<CollectiveException> onBreak) {
        this.context = context;
        this.device = device;
        this.blockingWait = blockingWait;
        this.hosts = hosts;
        this.buffers = buffers;
        this.allReduce = allReduce;
        this.onBreak = onBreak;
        String name = "cuda_p2p-" + context.name() + "-rank-" + context.rank();
        manager = NDManager.newBaseManager(device.device(), "PyTorch");
        manager.setName(name);
        events = new EventPool(device);
        this.currentStreams = currentStreams;
        last = CudaEvent.create(device);
        watchdog = new Watchdog(name, new Alone());
    }

    /** Stands for what graphs replay unseen, so that the death of a peer ends its waits, too. */
    private final class Replays implements Watchdog.Watched {

        private final Operation operation;

        Replays(Operation operation) {
            this.operation = operation;
        }

        @Override
        public boolean poll() {
            return false;
        }

        @Override
        public boolean isLate() {
            return false;
        }

        @Override
        public Operation operation() {
            return operation;
        }

        @Override
        public Watchdog.Line lane() {
            return P2pLine.this;
        }

        @Override
        public boolean seal(CollectiveException reason) {
            return true;
        }

        @Override
        public void complete(boolean quiet) {}
    }

    /** There is one line. */
    private final class Alone implements Watchdog.Group {

        @Override
        public Collection<? extends Watchdog.Line> failingWith(Watchdog.Line line) {
            return List.of(P2pLine.this);
        }

        @Override
        public Collection<? extends Watchdog.Line> lines() {
            return List.of(P2pLine.this);
        }

        @Override
        public Optional<String> deadPeer() {
            if (System.nanoTime() - looked < LOOK_NANOS) {
                return Optional.empty();
            }
            looked = System.nanoTime();
            return Optional.ofNullable(hosts.brokenRank());
        }
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
     * @param body enqueues it on the stream that it is given
     * @param result its outputs
     * @return the work
     */
    Work run(Operation operation, Consumer<CudaStream> body, List<NDArray> result) {
        if (broken != null) {
            throw new CollectiveException(
                    operation
                            + " cannot run: the group is broken since an earlier operation failed ("
                            + broken.getMessage()
                            + "); destroy it and create a new one",
                    broken);
        }
        buffers.begin();
        CudaStream current = currentStreams.get();
        if (current.isCapturing()) {
            return capture(operation, current, body, result);
        }
        List<NDArray> held = result.stream().map(array -> Torch.alias(manager, array)).toList();
        StreamWork work = new StreamWork(this, operation, result, held);
        operation.started();
        current.waitEvent(last);
        try {
            attempt(operation, current, body);
        } catch (CollectiveMismatchException e) {
            last.record(current); // The next one comes behind what was enqueued all the same.
            work.fail(e);
            return work;
        } catch (RuntimeException e) {
            CollectiveException reason =
                    e instanceof CollectiveException collective
                            ? collective
                            : new CollectiveException(operation + " failed: " + e, e);
            watchdog.fail(List.of(this), reason);
            work.fail(reason);
            return work;
        }
        last.record(current);
        work.recordEnd(current);
        watchdog.add(work);
        if (broken != null && watchdog.remove(work) && work.seal(broken)) {
            // Whoever broke the line did not see the work.
            work.complete(false);
        }
        return work;
    }

    private void attempt(Operation operation, CudaStream current, Consumer<CudaStream> body) {
        try {
            body.accept(current);
        } catch (CollectiveMismatchException e) {
            // The group goes on: with what was sent not arriving in the midst of the next one.
            buffers.skip();
            buffers.stream().synchronize();
            hosts.meet(operation);
            throw e;
        }
    }

    /** Lets the current stream wait for the operations so far. */
    void join() {
        CudaStream current = currentStreams.get();
        if (!current.isCapturing()) {
            current.waitEvent(last);
        }
    }

    /** Puts an operation into the graph that the current stream is recorded into. */
    private Work capture(
            Operation operation,
            CudaStream current,
            Consumer<CudaStream> body,
            List<NDArray> result) {
        operation.started();
        try {
            body.accept(current);
        } catch (RuntimeException e) {
            if (e instanceof CollectiveMismatchException) {
                buffers.skip();
            }
            operation.ended(e);
            throw e;
        }
        current.keepAlive(result.toArray(new NDArray[0]));
        operation.ended(null);
        if (replays == null) {
            replays = new Replays(operation);
            watchdog.add(replays);
            if (broken != null) {
                release(); // Whoever broke the line did not see the graph.
            }
        }
        return new CapturedWork(result);
    }

    /** Why an operation failed that has ended; null if it did not. */
    CollectiveException failureOf(Operation operation) {
        return allReduce.failure(operation);
    }

    /** Tells also what went wrong in a kernel that a graph replayed. */
    @Override
    public Optional<String> error() {
        return allReduce.missing();
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

    @Override
    public void abort() {
        release();
        awaitReplays();
        // What waits for it may be NCCL's, whose abort waits for that.
        onBreak.accept(broken);
        device.synchronize();
    }

    /**
     * Lets everything go on that waits for other ranks, now and until the group is freed: what
     * graphs replay waits anew each time.
     */
    private void release() {
        allReduce.stop();
        buffers.release();
        synchronized (this) {
            if (replays == null || releaser != null) {
                return;
            }
            releaser = new Thread(this::releaseOn, "cuda_p2p-release-" + context.name());
            releaser.setDaemon(true);
            releaser.start();
        }
    }

    private void releaseOn() {
        try {
            long start = System.nanoTime();
            while (!freed) {
                buffers.releaseReplays();
                long pause = (System.nanoTime() - start) / 256;
                LockSupport.parkNanos(
                        Math.max(MIN_RELEASE_NANOS, Math.min(MAX_RELEASE_NANOS, pause)));
            }
        } catch (CudaException e) {
            logger.debug("group '{}': the GPU is lost", context.name(), e);
        }
    }

    /**
     * Gives launched graphs time to come to an end: whoever frees memory now waits for them, and
     * may keep what releases them from the driver. But the GPU may also wait for NCCL's abort.
     */
    private void awaitReplays() {
        if (replays == null) {
            return;
        }
        Thread thread =
                LongCalls.start(
                        "cuda_p2p-replays-" + context.name(),
                        () -> {
                            try {
                                device.synchronize();
                            } catch (CudaException e) {
                                logger.debug("group '{}': the GPU is lost", context.name(), e);
                            }
                        });
        LongCalls.join(List.of(thread), REPLAY_PATIENCE);
    }

    /** Makes the host's waits for other ranks fail; any thread may call it. */
    void end() {
        hosts.end();
    }

    /** Ends what is under way. */
    void stop() {
        if (replays != null) {
            watchdog.remove(replays);
        }
        if (!watchdog.isIdle()) {
            watchdog.fail(
                    List.of(this),
                    new CollectiveException(
                            "this rank destroyed the group '" + context.name() + "'"));
        }
        watchdog.close();
        if (replays != null) {
            release(); // Nobody knows what graphs still do.
            awaitReplays();
        }
    }

    /** Frees everything, after {@link #stop}. */
    void close() {
        device.synchronize();
        freed = true;
        joinReleaser();
        allReduce.close();
        buffers.close();
        events.close();
        currentStreams.close();
        last.close();
        manager.close();
    }

    private void joinReleaser() {
        Thread thread;
        synchronized (this) {
            thread = releaser;
        }
        try {
            if (thread != null) {
                thread.join();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
