// SPDX-License-Identifier: Apache-2.0
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
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.host.Deadline;

/**
 * An operation on a GPU. It ends when the event recorded after it has completed. The {@link
 * Watchdog} polls the event, and so does a thread that waits for the work.
 */
public abstract class GpuWork implements Work, Watchdog.Watched, GpuTurns.Launched {

    // A waiting host spins for this long, then sleeps between polls.
    private static final long SPIN_NANOS = 1_000_000;
    private static final long MAX_SLEEP_NANOS = 1_000_000;

    private final Operation operation;
    private final List<NDArray> result;
    private final EventPool events;
    private final CurrentStreams currentStreams;
    private final boolean blockingWait;
    private final CompletableFuture<List<NDArray>> future = new CompletableFuture<>();
    private boolean ordered; // the issuing thread's next wait has nothing to do
    private volatile long startNanos = System.nanoTime();

    // Guarded by this.
    private CudaEvent end; // null until the operation is enqueued
    private int waiters; // threads that let a stream wait for the end event
    private boolean recycle; // give the end event back once there is no waiter
    private boolean ended;
    private volatile CollectiveException failure; // set before the future is completed

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

    /** Releases the memory that the work holds, once the GPU no longer uses it. */
    protected abstract void release();

    /**
     * Returns the operation's failure; null if it succeeded. Called after its work on the GPU has
     * ended.
     */
    protected CollectiveException failureAtEnd() {
        return null;
    }

    /** Throws if the calling thread must not wait for the work. */
    protected void requireWaitable() {}

    /**
     * Returns whether the work was enqueued on a stream. Later work on that stream then need not
     * wait for an event.
     */
    protected boolean isOn(CudaStream stream) {
        return false;
    }

    /** Gives events back to the pool; called when the work has ended. */
    protected synchronized void recycleEvents() {
        recycle = true;
        if (end != null && waiters == 0) {
            events.give(end);
            end = null;
        }
    }

    /** Returns whether the whole work is enqueued, or has ended. */
    protected final synchronized boolean isEnqueued() {
        return end != null || ended;
    }

    /** Returns whether the work has ended, even if it has not been completed yet. */
    protected final synchronized boolean hasEnded() {
        return ended;
    }

    /** Returns whether the operation has failed. Valid in {@link #release}. */
    protected final boolean hasFailed() {
        return failure != null;
    }

    protected final void restartTime() {
        startNanos = System.nanoTime();
    }

    /** Records the end of the operation on the stream on which it was enqueued. */
    public final void recordEnd(CudaStream stream) {
        CudaEvent event = events.take();
        event.record(stream); // May block if the GPU is stuck: not under the lock.
        synchronized (this) {
            if (!ended) {
                end = event;
                notifyAll();
                return;
            }
        }
        events.give(event);
    }

    @Override
    public final long sequence() {
        return operation.sequence();
    }

    @Override
    public final Optional<Duration> duration() {
        return operation.duration();
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

    /** Fails a work, unless it has ended. No part of the work may be running on the GPU. */
    public final void fail(CollectiveException reason) {
        if (seal(reason)) {
            complete(true);
        }
    }

    /** Also true if the work has ended, and another thread is still releasing its memory. */
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
        boolean done = ordered;
        ordered = false;
        if (!done || failure != null) {
            orderCurrentStream();
        }
    }

    /** Tells that the next wait is that of the issuing thread, on the stream of the work. */
    public final void setOrdered() {
        ordered = true;
    }

    /**
     * Lets the current stream wait for the work, like {@link #blockCurrentStream}, but without the
     * check for an open batch: the work is launched, or about to be.
     */
    public final void orderCurrentStream() {
        order(currentStreams.get());
        if (failure != null) {
            throw failure;
        }
    }

    /** Lets a stream wait for the work, whether it succeeds or fails. */
    @Override
    public final void order(CudaStream stream) {
        CudaEvent event = isOn(stream) ? null : awaitEnqueued();
        if (event != null) {
            try {
                // May block if the GPU is stuck: not under the lock, which the watchdog takes.
                stream.waitEvent(event);
            } finally {
                leave();
            }
        }
    }

    /** Returns the end event, to be followed by {@link #leave}; null if the work has ended. */
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
