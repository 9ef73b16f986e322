/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.shm;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Operation;
import org.djlx.collectives.Work;

/** An operation in an {@link OpQueue}. */
final class OpWork implements Work {

    private final OpQueue queue;
    private final Operation operation;
    private final Runnable body;
    private final Runnable cleanup;
    private final List<NDArray> result;
    private final CompletableFuture<List<NDArray>> future = new CompletableFuture<>();
    private CollectiveException failure; // published by the future's completion

    OpWork(
            OpQueue queue,
            Operation operation,
            Runnable body,
            Runnable cleanup,
            List<NDArray> result) {
        this.queue = queue;
        this.operation = operation;
        this.body = body;
        this.cleanup = cleanup;
        this.result = result;
    }

    Operation operation() {
        return operation;
    }

    /** Runs the operation; called by the queue, once. */
    void run() {
        operation.started();
        try {
            body.run();
            end(null);
        } catch (CollectiveException e) {
            end(e);
        } catch (RuntimeException | Error e) {
            end(new CollectiveException(operation + " failed: " + e, e));
        }
    }

    /** Ends the operation without running it. */
    void fail(CollectiveException reason) {
        end(reason);
    }

    private void end(CollectiveException reason) {
        cleanup.run();
        failure = reason;
        operation.ended(reason);
        if (reason == null) {
            future.complete(result);
        } else {
            future.completeExceptionally(reason);
        }
    }

    @Override
    public boolean isCompleted() {
        return future.isDone();
    }

    @Override
    public Optional<Throwable> exception() {
        return isCompleted() ? Optional.ofNullable(failure) : Optional.empty();
    }

    @Override
    public void await() {
        while (!isCompleted() && !queue.runUntil(this)) {
            // Another thread runs operations; it may stop before this one.
            try {
                awaitFuture(1_000_000);
            } catch (TimeoutException e) {
                continue;
            }
        }
        rethrow();
    }

    @Override
    public void await(Duration timeout) {
        // Run by the queue's thread: this one could not stop in the middle of an operation.
        queue.expedite();
        try {
            awaitFuture(timeout.toNanos());
        } catch (TimeoutException e) {
            throw new CollectiveTimeoutException(
                    operation + " was still under way after " + timeout, List.of());
        }
        rethrow();
    }

    private void awaitFuture(long nanos) throws TimeoutException {
        try {
            future.get(nanos, TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CollectiveException("interrupted while waiting for " + operation, e);
        } catch (ExecutionException e) {
            // Reported by rethrow().
        }
    }

    private void rethrow() {
        if (failure != null) {
            throw failure;
        }
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
        return operation + (isCompleted() ? isSuccess() ? " done" : " failed" : " under way");
    }
}
