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
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Operation;
import org.djlx.collectives.Work;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;

/**
 * An operation on a GPU. It has ended when its event has happened, which the backend's {@link
 * Watchdog} finds out, and whoever waits for it sooner.
 */
final class NcclWork implements Work {

    // A host that waits looks at the event all the time for so long, then lets the watchdog look.
    private static final long SPIN_NANOS = 2_000_000;

    private final Operation operation;
    private final CudaEvent end;
    private final Runnable cleanup;
    private final List<NDArray> result;
    private final CudaStream current;
    private final Supplier<CollectiveException> check;
    private final long startNanos = System.nanoTime();
    private final CompletableFuture<List<NDArray>> future = new CompletableFuture<>();
    private boolean ended; // guarded by this
    private CollectiveException failure; // published by the future's completion

    /**
     * Creates the work.
     *
     * @param operation the operation
     * @param end recorded behind its last piece of work
     * @param cleanup frees what it needed, once it has ended
     * @param result its outputs
     * @param current the stream on which the caller goes on
     * @param check tells, once it has ended, why it failed; null if it did not
     */
    NcclWork(
            Operation operation,
            CudaEvent end,
            Runnable cleanup,
            List<NDArray> result,
            CudaStream current,
            Supplier<CollectiveException> check) {
        this.check = check;
        this.operation = operation;
        this.end = end;
        this.cleanup = cleanup;
        this.result = result;
        this.current = current;
    }

    /** Creates the work of an operation that could not be enqueued. */
    static NcclWork failed(Operation operation, CollectiveException reason, List<NDArray> result) {
        NcclWork work = new NcclWork(operation, null, () -> {}, result, null, () -> null);
        work.fail(reason);
        return work;
    }

    Operation operation() {
        return operation;
    }

    /** Tells whether the operation has taken longer than it may. */
    boolean isLate() {
        return System.nanoTime() - startNanos > operation.timeout().toNanos();
    }

    /** Looks whether the operation has ended, and if so completes the work. */
    boolean poll() {
        synchronized (this) {
            if (ended) {
                return true;
            }
            if (!end.query()) {
                return false;
            }
            ended = true;
        }
        complete(check.get());
        return true;
    }

    /** Ends the work with a failure; the GPU no longer runs it. */
    void fail(CollectiveException reason) {
        synchronized (this) {
            if (ended) {
                return;
            }
            ended = true;
        }
        complete(reason);
    }

    private void complete(CollectiveException reason) {
        if (end != null) {
            end.close();
        }
        cleanup.run();
        operation.ended(reason);
        failure = reason;
        if (reason == null) {
            future.complete(result);
        } else {
            future.completeExceptionally(reason);
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
        long start = System.nanoTime();
        while (!isCompleted() && System.nanoTime() - start < SPIN_NANOS) {
            Thread.onSpinWait();
        }
        try {
            await(Long.MAX_VALUE);
        } catch (TimeoutException e) {
            throw new AssertionError(e);
        }
    }

    @Override
    public void await(Duration timeout) {
        try {
            await(timeout.toNanos());
        } catch (TimeoutException e) {
            throw new CollectiveTimeoutException(
                    operation + " was still under way after " + timeout, List.of());
        }
    }

    private void await(long nanos) throws TimeoutException {
        try {
            future.get(nanos, TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CollectiveException("interrupted while waiting for " + operation, e);
        } catch (ExecutionException e) {
            throw failure;
        }
    }

    @Override
    public void blockCurrentStream() {
        synchronized (this) {
            if (!ended) {
                current.waitEvent(end);
                return;
            }
        }
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
        return operation + (isCompleted() ? failure == null ? " done" : " failed" : " under way");
    }
}
