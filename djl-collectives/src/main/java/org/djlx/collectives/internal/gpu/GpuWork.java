/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.gpu;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.Deadline;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;

/**
 * An operation on a GPU. It has ended when the event behind it has happened, which the {@link
 * Watchdog} finds out, and whoever waits for it sooner.
 */
public abstract class GpuWork implements Work, Watchdog.Watched {

    // A host that waits looks all the time for so long, then sleeps in between.
    private static final long SPIN_NANOS = 1_000_000;
    private static final long MAX_SLEEP_NANOS = 1_000_000;

    private final Operation operation;
    private final List<NDArray> result;
    private final EventPool events;
    private final CurrentStreams currentStreams;
    private final boolean blockingWait;
    private final CompletableFuture<List<NDArray>> future = new CompletableFuture<>();
    private volatile long startNanos = System.nanoTime();

    // Guarded by this.
    private CudaEvent end; // once it is enqueued
    private int waiters; // that tell a stream to wait for it
    private boolean recycle; // when there is no waiter any more
    private boolean ended;
    private volatile CollectiveException failure; // set before the future is completed

    /**
     * Creates the work.
     *
     * @param operation the operation
     * @param result its outputs
     * @param events where its events come from
     * @param currentStreams the callers' streams
     * @param blockingWait whether {@link #await()} blocks the host
     */
    protected GpuWork(
            Operation operation,
            List<NDArray> result,
            EventPool events,
            CurrentStreams currentStreams,
            boolean blockingWait) {
        this.operation = operation;
        this.result = result;
        this.events = events;
        this.currentStreams = currentStreams;
        this.blockingWait = blockingWait;
    }

    /** Frees what the work holds, when the GPU no longer uses it. */
    protected abstract void release();

    /**
     * Returns why the operation failed, though all that was enqueued has ended.
     *
     * @return the reason; null if it did not fail
     */
    protected CollectiveException failureAtEnd() {
        return null;
    }

    /** Throws if the calling thread must not wait for the work. */
    protected void requireWaitable() {}

    /**
     * Tells whether the work was enqueued on a stream, where nothing that follows need wait for it.
     *
     * @param stream the stream
     * @return whether it was
     */
    protected boolean isOn(CudaStream stream) {
        return false;
    }

    /** Gives events back; called when the work has ended. */
    protected synchronized void recycleEvents() {
        recycle = true;
        if (end != null && waiters == 0) {
            events.give(end);
            end = null;
        }
    }

    /**
     * Tells whether the work has been enqueued as a whole, or has ended.
     *
     * @return whether one can wait for it
     */
    protected final synchronized boolean isEnqueued() {
        return end != null || ended;
    }

    /**
     * Tells whether it is decided how the work ends.
     *
     * @return whether it is
     */
    protected final synchronized boolean hasEnded() {
        return ended;
    }

    /**
     * Tells whether the operation has failed; known before {@link #release} is called.
     *
     * @return whether it has
     */
    protected final boolean hasFailed() {
        return failure != null;
    }

    /** Starts the time that the operation may take once more. */
    protected final void restartTime() {
        startNanos = System.nanoTime();
    }

    /**
     * Marks the end of what was enqueued.
     *
     * @param stream where it was
     */
    public final void recordEnd(CudaStream stream) {
        CudaEvent behind = events.take();
        behind.record(stream); // May block if the GPU is stuck: not under the lock.
        synchronized (this) {
            if (!ended) {
                end = behind;
                notifyAll();
                return;
            }
        }
        events.give(behind);
    }

    @Override
    public final Operation operation() {
        return operation;
    }

    @Override
    public long elapsedNanos() {
        return System.nanoTime() - startNanos;
    }

    @Override
    public final boolean isDone() {
        return future.isDone();
    }

    @Override
    public final boolean poll() {
        synchronized (this) {
            if (ended) {
                return future.isDone();
            }
            if (end == null || !end.query()) {
                return false;
            }
            ended = true;
            failure = failureAtEnd();
        }
        complete(true);
        return true;
    }

    @Override
    public final synchronized boolean seal(CollectiveException reason) {
        if (ended) {
            return false;
        }
        ended = true;
        failure = reason;
        notifyAll();
        return true;
    }

    @Override
    public final void complete(boolean quiet) {
        try {
            if (quiet) {
                release();
            }
            recycleEvents();
        } catch (RuntimeException e) {
            if (failure == null) {
                failure = new CollectiveException(operation + " failed: " + e.getMessage(), e);
            } else {
                failure.addSuppressed(e);
            }
        }
        operation.ended(failure);
        if (failure == null) {
            future.complete(result);
        } else {
            future.completeExceptionally(failure);
        }
    }

    /** Also while another thread, which has seen it end, still frees what it holds. */
    @Override
    public final boolean isCompleted() {
        return poll() || hasEnded();
    }

    @Override
    public final Optional<Throwable> exception() {
        return isCompleted() ? Optional.ofNullable(failure) : Optional.empty();
    }

    @Override
    public final void await() {
        if (blockingWait) {
            awaitEnd(Long.MAX_VALUE);
        } else {
            blockCurrentStream();
        }
    }

    @Override
    public final void await(Duration timeout) {
        if (!awaitEnd(Deadline.after(timeout).remainingNanos())) {
            throw GroupErrors.stillUnderWay(operation, timeout);
        }
    }

    private boolean awaitEnd(long nanos) {
        requireWaitable();
        long start = System.nanoTime();
        while (!future.isDone() && !poll()) {
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
                throw GroupErrors.interrupted(operation, null);
            }
        }
        if (failure != null) {
            throw failure;
        }
        return true;
    }

    @Override
    public final void blockCurrentStream() {
        requireWaitable();
        orderCurrentStream();
    }

    /**
     * As {@link #blockCurrentStream}, for who knows that the work is, or is about to be, launched.
     */
    public final void orderCurrentStream() {
        order(currentStreams.get());
        if (failure != null) {
            throw failure;
        }
    }

    /**
     * Lets a stream wait for the work, however that ends.
     *
     * @param stream the stream
     */
    public final void order(CudaStream stream) {
        CudaEvent behind = isOn(stream) ? null : awaitEnqueued();
        if (behind != null) {
            try {
                // May block if the GPU is stuck: not under the lock, which the watchdog takes.
                stream.waitEvent(behind);
            } finally {
                leave();
            }
        }
    }

    /** Returns the event behind the operation, to {@link #leave}; null if that has ended. */
    private synchronized CudaEvent awaitEnqueued() {
        try {
            while (end == null && !ended) {
                wait();
            }
        } catch (InterruptedException e) {
            throw GroupErrors.interrupted(operation, e);
        }
        if (ended) {
            return null;
        }
        waiters++;
        return end;
    }

    private synchronized void leave() {
        waiters--;
        if (recycle) {
            recycleEvents();
        }
    }

    @Override
    public final List<NDArray> result() {
        return result;
    }

    @Override
    public final CompletionStage<List<NDArray>> getFuture() {
        return future.minimalCompletionStage();
    }

    @Override
    public final String toString() {
        return operation + (isCompleted() ? failure == null ? " done" : " failed" : " under way");
    }
}
