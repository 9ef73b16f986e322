/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.OpType;
import org.djlx.collectives.Operation;
import org.djlx.collectives.Work;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.NcclCommunicator;

/**
 * An operation on a GPU: issued by the caller, then launched by its {@link Lane}, which is mostly
 * the same call; it has ended when the event behind it has happened, which the {@link Watchdog}
 * finds out, and whoever waits for it sooner.
 */
final class NcclWork implements Work, Watchdog.Watched {

    // A host that waits looks all the time for so long, then sleeps in between.
    private static final long SPIN_NANOS = 1_000_000;
    private static final long MAX_SLEEP_NANOS = 1_000_000;

    private final Lane lane;
    private final Operation operation;
    private final Call call;
    private final List<NDArray> result;
    private final int peer;
    private final CompletableFuture<List<NDArray>> future = new CompletableFuture<>();
    private volatile long startNanos = System.nanoTime();
    private volatile boolean verifying;

    // Guarded by this.
    private CudaEvent ready; // what the caller has enqueued before, until the work is launched
    private CudaEvent end; // once it is launched
    private boolean ended;
    private volatile CollectiveException failure; // set before the future is completed

    /**
     * Creates the work, behind what the calling thread has enqueued on its current stream.
     *
     * @param lane where it runs
     * @param operation the operation
     * @param call what it does
     * @param result its outputs
     * @param peer the other rank of a message, or -1
     */
    NcclWork(Lane lane, Operation operation, Call call, List<NDArray> result, int peer) {
        this.lane = lane;
        this.operation = operation;
        this.call = call;
        this.result = result;
        this.peer = peer;
        ready = lane.resources().events().take();
        ready.record(lane.resources().current().get());
    }

    @Override
    public Operation operation() {
        return operation;
    }

    @Override
    public Lane lane() {
        return lane;
    }

    int peer() {
        return peer;
    }

    Call call() {
        return call;
    }

    /** Tells that who verifies the work takes care of its timeout. */
    void beginVerification() {
        verifying = true;
    }

    /** Starts the time that the operation may take. */
    void endVerification() {
        startNanos = System.nanoTime();
        verifying = false;
    }

    @Override
    public boolean isLate() {
        return !verifying && System.nanoTime() - startNanos > operation.timeout().toNanos();
    }

    /** Enqueues the operation, by the lane. */
    void launch(NcclCommunicator nccl, CudaStream stream) {
        CudaEvent before;
        synchronized (this) {
            if (ended) {
                return;
            }
            before = ready;
            ready = null;
        }
        stream.waitEvent(before);
        lane.resources().events().give(before);
        operation.started();
        call.body().enqueue(nccl, stream);
    }

    /** Marks the end of what {@link #launch} enqueued, when NCCL has it in the stream. */
    void launched(CudaStream stream) {
        lane.resources().flush(call.out(), stream);
        CudaEvent behind = lane.resources().events().take();
        behind.record(stream); // May block if the GPU is stuck: not under the lock.
        synchronized (this) {
            if (!ended) {
                end = behind;
                notifyAll();
                return;
            }
        }
        lane.resources().events().give(behind);
    }

    @Override
    public boolean poll() {
        synchronized (this) {
            if (ended) {
                return future.isDone();
            }
            if (end == null || !end.query()) {
                return false;
            }
            ended = true;
        }
        complete(true);
        return true;
    }

    @Override
    public synchronized boolean seal(CollectiveException reason) {
        if (ended) {
            return false;
        }
        ended = true;
        failure = reason;
        notifyAll();
        return true;
    }

    @Override
    public void complete(boolean quiet) {
        if (quiet) {
            call.release();
        }
        recycleEvents();
        operation.ended(failure);
        if (failure == null) {
            future.complete(result);
        } else {
            future.completeExceptionally(failure);
        }
    }

    /** Gives up what the work holds, if it could not be issued. */
    void discard() {
        call.release();
        recycleEvents();
    }

    private synchronized void recycleEvents() {
        if (ready != null) {
            lane.resources().events().give(ready);
            ready = null;
        }
        if (end != null) {
            lane.resources().events().give(end);
            end = null;
        }
    }

    @Override
    public boolean isCompleted() {
        return future.isDone() || poll();
    }

    @Override
    public Optional<Throwable> exception() {
        return isCompleted() ? Optional.ofNullable(failure) : Optional.empty();
    }

    @Override
    public void await() {
        if (lane.resources().blocking()) {
            awaitEnd(Long.MAX_VALUE);
        } else {
            blockCurrentStream();
        }
    }

    @Override
    public void await(Duration timeout) {
        if (!awaitEnd(timeout.toNanos())) {
            throw new CollectiveTimeoutException(
                    operation + " was still under way after " + timeout, List.of());
        }
    }

    private boolean awaitEnd(long nanos) {
        requireLaunchable();
        long start = System.nanoTime();
        while (!isCompleted()) {
            long elapsed = System.nanoTime() - start;
            if (elapsed > nanos) {
                return false;
            }
            if (elapsed < SPIN_NANOS) {
                Thread.onSpinWait();
            } else {
                LockSupport.parkNanos(this, Math.min(MAX_SLEEP_NANOS, elapsed / 32));
            }
            if (Thread.currentThread().isInterrupted()) {
                throw new CollectiveException("interrupted while waiting for " + operation);
            }
        }
        if (failure != null) {
            throw failure;
        }
        return true;
    }

    /** Refuses to wait for what this thread itself has yet to launch. */
    private synchronized void requireLaunchable() {
        if (end == null && !ended && NcclBatch.current() != null) {
            throw new IllegalStateException(
                    operation + " is part of a batch: wait for it when the batch has ended");
        }
    }

    @Override
    public void blockCurrentStream() {
        requireLaunchable();
        CudaStream current = lane.resources().current().get();
        synchronized (this) {
            try {
                while (end == null && !ended) {
                    wait();
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new CollectiveException("interrupted while waiting for " + operation, e);
            }
            if (!ended) {
                current.waitEvent(end);
            }
        }
        if (failure != null) {
            throw failure;
        }
    }

    @Override
    public int sourceRank() {
        if (operation.type() == OpType.RECV && isSuccess()) {
            return peer;
        }
        return Work.super.sourceRank();
    }

    @Override
    public List<NDArray> result() {
        return result;
    }

    @Override
    public CompletionStage<List<NDArray>> getFuture() {
        return future.minimalCompletionStage();
    }

    @Override
    public String toString() {
        return operation + (isCompleted() ? failure == null ? " done" : " failed" : " under way");
    }
}
