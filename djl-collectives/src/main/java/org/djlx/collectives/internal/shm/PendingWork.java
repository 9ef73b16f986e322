/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

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
import org.djlx.collectives.internal.host.Deadline;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What operations that run one after the other and messages have in common: how they end. */
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
     * Ends the operation; with a reason if it failed, with null if not. Throws nothing: memory or
     * descriptors may have run out, but nobody may wait for ever.
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
        boolean told = false;
        while (!told) {
            try {
                if (reason == null) {
                    future.complete(result);
                } else {
                    future.completeExceptionally(reason);
                }
                told = true;
            } catch (RuntimeException | Error e) {
                // Not all that depends on it was told: once there is some memory, it will be.
                LockSupport.parkNanos(RETRY_NANOS);
            }
        }
    }

    private void warn(Throwable e) {
        try {
            logger.warn("the end of {} cannot be recorded", operation, e);
        } catch (RuntimeException | Error again) {
            // Nor said.
        }
    }

    @Override
    public final boolean isCompleted() {
        return future.isDone();
    }

    @Override
    public final Optional<Throwable> exception() {
        return isCompleted() ? Optional.ofNullable(failure) : Optional.empty();
    }

    /** Waits without taking part in the operation. */
    final void awaitFuture() {
        try {
            future.get();
        } catch (InterruptedException e) {
            throw GroupErrors.interrupted(operation, e);
        } catch (ExecutionException e) {
            // Reported by rethrow().
        }
    }

    /** Sees to it that the operation goes on though this thread takes no part in it. */
    abstract void expedite();

    @Override
    public final void await(Duration timeout) {
        // Left to another thread: this one could not stop in the middle of an operation.
        expedite();
        try {
            awaitFuture(Deadline.after(timeout).remainingNanos());
        } catch (TimeoutException e) {
            throw GroupErrors.stillUnderWay(operation, timeout);
        }
        rethrow();
    }

    /** Waits without taking part in the operation. */
    final void awaitFuture(long nanos) throws TimeoutException {
        try {
            future.get(nanos, TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            throw GroupErrors.interrupted(operation, e);
        } catch (ExecutionException e) {
            // Reported by rethrow().
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
        return operation + (isCompleted() ? isSuccess() ? " done" : " failed" : " under way");
    }
}
