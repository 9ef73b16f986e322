/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Several operations that the caller sees as one. */
final class CoalescedWork implements Work {

    /**
     * One of the operations.
     *
     * @param work the operation
     * @param end completes when its results are where they belong, or it has failed
     */
    record Part(Work work, CompletionStage<Void> end) {}

    private final List<Part> parts;
    private final List<NDArray> result;
    private final CompletableFuture<List<NDArray>> future;

    CoalescedWork(List<Part> parts, List<NDArray> result) {
        this.parts = List.copyOf(parts);
        this.result = result;
        CompletableFuture<?>[] ends =
                parts.stream()
                        .map(part -> part.end().thenCombine(part.work().getFuture(), (a, b) -> b))
                        .map(CompletionStage::toCompletableFuture)
                        .toArray(CompletableFuture<?>[]::new);
        future = CompletableFuture.allOf(ends).thenApply(nothing -> result);
    }

    @Override
    public boolean isCompleted() {
        return future.isDone();
    }

    @Override
    public Optional<Throwable> exception() {
        if (!future.isCompletedExceptionally()) {
            return Optional.empty();
        }
        try {
            future.join();
            return Optional.empty();
        } catch (CompletionException e) {
            return Optional.of(e.getCause());
        }
    }

    @Override
    public void await() {
        // One after the other, as they run; they all end even if one has failed.
        parts.forEach(part -> awaitEnd(part.work(), part.work()::await));
        try {
            future.join();
        } catch (CompletionException e) {
            throw failure(e.getCause());
        }
    }

    @Override
    public void await(Duration timeout) {
        long end = System.nanoTime() + timeout.toNanos();
        for (Part part : parts) {
            Duration left = Duration.ofNanos(Math.max(0, end - System.nanoTime()));
            awaitEnd(part.work(), () -> part.work().await(left));
        }
        try {
            future.get(Math.max(0, end - System.nanoTime()), TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CollectiveException("interrupted while waiting for " + this, e);
        } catch (ExecutionException e) {
            throw failure(e.getCause());
        } catch (TimeoutException e) {
            throw new CollectiveTimeoutException(
                    this + " was still under way after " + timeout, List.of(), e);
        }
    }

    /** Waits; if the work has failed, the future tells, when it knows of it too. */
    private static void awaitEnd(Work work, Runnable await) {
        try {
            await.run();
        } catch (CollectiveException e) {
            if (!work.isCompleted()) {
                throw e;
            }
        }
    }

    private static CollectiveException failure(Throwable cause) {
        return cause instanceof CollectiveException e
                ? e
                : new CollectiveException("a coalesced operation failed: " + cause, cause);
    }

    @Override
    public void blockCurrentStream() {
        parts.forEach(part -> part.work().blockCurrentStream());
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
        return parts.stream().map(Part::work).toList().toString();
    }
}
