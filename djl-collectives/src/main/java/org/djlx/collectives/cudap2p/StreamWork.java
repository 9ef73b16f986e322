/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.cudap2p;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Operation;
import org.djlx.collectives.Work;
import org.djlx.collectives.nccl.Watchdog;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;

/** An operation on the stream that was the caller's current one. */
final class StreamWork implements Work, Watchdog.Watched {

    private static final long SPIN_NANOS = 100_000;
    private static final long MAX_SLEEP_NANOS = 1_000_000;

    private final P2pLine line;
    private final Operation operation;
    private final List<NDArray> result;
    private final List<NDArray> held;
    private final long startNanos = System.nanoTime();
    private final CompletableFuture<List<NDArray>> future = new CompletableFuture<>();
    private CudaEvent end; // guarded by this
    private boolean ended; // guarded by this
    private CollectiveException failure; // published by the future's completion

    /**
     * Creates the work.
     *
     * @param line where it runs
     * @param operation the operation
     * @param result its outputs
     * @param held arrays to close when it has ended
     */
    StreamWork(P2pLine line, Operation operation, List<NDArray> result, List<NDArray> held) {
        this.line = line;
        this.operation = operation;
        this.result = result;
        this.held = held;
    }

    /** Marks the end of what was enqueued. */
    synchronized void enqueued(CudaEvent behind) {
        end = behind;
    }

    /** Ends the work, of which nothing was enqueued that could still run. */
    void fail(CollectiveException reason) {
        if (seal(reason)) {
            complete(true);
        }
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
            failure = line.failureOf(operation);
        }
        complete(true);
        return true;
    }

    @Override
    public boolean isLate() {
        return System.nanoTime() - startNanos > operation.timeout().toNanos();
    }

    @Override
    public Operation operation() {
        return operation;
    }

    @Override
    public Watchdog.Line lane() {
        return line;
    }

    @Override
    public synchronized boolean seal(CollectiveException reason) {
        if (ended) {
            return false;
        }
        ended = true;
        failure = reason;
        return true;
    }

    @Override
    public void complete(boolean quiet) {
        if (quiet) {
            held.forEach(NDArray::close);
        }
        synchronized (this) {
            if (end != null) {
                line.events().give(end);
                end = null;
            }
        }
        operation.ended(failure);
        if (failure == null) {
            future.complete(result);
        } else {
            future.completeExceptionally(failure);
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
        if (line.isBlockingWait()) {
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

    @Override
    public void blockCurrentStream() {
        CudaStream current = line.currentStream();
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
