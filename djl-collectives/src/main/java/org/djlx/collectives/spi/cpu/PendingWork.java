// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.Deadline;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The base class of operations and messages: their completion. */
abstract class PendingWork implements Work {

    private static final long RETRY_NANOS = 1_000_000;
    private static final Logger logger = LoggerFactory.getLogger(PendingWork.class);

    private final Operation operation;
    private final List<NDArray> result;
    private final CompletableFuture<List<NDArray>> future = new CompletableFuture<>();
    private CollectiveException failure; // published by the future's completion

    PendingWork(Operation operation, List<NDArray> result) {
        this.operation = operation;
        this.result = result;
    }

    final Operation operation() {
        return operation;
    }

    /**
     * Completes the work: with a failure, or with null for success. Never throws, even if memory or
     * descriptors have run out, because threads may wait for the work.
     */
    final void complete(CollectiveException reason) {
        if (isCompleted()) {
            return;
        }
        failure = reason;
        try {
            operation.ended(reason);
        } catch (RuntimeException | Error e) {
            warn(e);
        }
        boolean completed = false;
        while (!completed) {
            try {
                if (reason == null) {
                    future.complete(result);
                } else {
                    future.completeExceptionally(reason);
                }
                completed = true;
            } catch (RuntimeException | Error e) {
                // Out of memory while completing dependents: retry until it succeeds.
                LockSupport.parkNanos(RETRY_NANOS);
            }
        }
    }

    private void warn(Throwable e) {
        try {
            logger.warn("cannot record the end of {}", operation, e);
        } catch (RuntimeException | Error again) {
            // Out of memory for the log as well.
        }
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
    public final boolean isCompleted() {
        return future.isDone();
    }

    @Override
    public final Optional<Throwable> exception() {
        return isCompleted() ? Optional.ofNullable(failure) : Optional.empty();
    }

    /** Makes a background thread run the operation immediately. */
    abstract void expedite();

    @Override
    public final void await(Duration timeout) {
        // A background thread runs the operation: the calling thread could not stop in the middle.
        expedite();
        if (!awaitFuture(Deadline.after(timeout).remainingNanos())) {
            throw GroupErrors.stillUnderWay(operation, timeout);
        }
        rethrow();
    }

    /**
     * Waits without taking part in the operation. Returns whether the operation has ended, also
     * with a failure; false at the timeout.
     */
    final boolean awaitFuture(long nanos) {
        try {
            future.get(nanos, TimeUnit.NANOSECONDS);
            return true;
        } catch (InterruptedException e) {
            throw GroupErrors.interrupted(operation, e);
        } catch (ExecutionException e) {
            return true; // The failure is reported by rethrow().
        } catch (TimeoutException e) {
            return false;
        }
    }

    final void rethrow() {
        if (failure != null) {
            throw failure;
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
        return operation + (isCompleted() ? isSuccess() ? " succeeded" : " failed" : " is running");
    }
}
