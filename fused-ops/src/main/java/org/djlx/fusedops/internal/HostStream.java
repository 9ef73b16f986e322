/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Operation;
import org.djlx.collectives.P2pBuffers;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Reductions;
import org.djlx.nativeops.Torch;

/**
 * A stream on the CPU: either the calling thread, which does the work at once, or a thread of a
 * pool that it shares with the other streams of the JVM and that it holds only while there is work.
 */
final class HostStream implements OpStream {

    // One signal word a pair of ranks is enough: a rank raises it once an operation.
    private static final int CHANNEL = 0;

    private static final ExecutorService POOL =
            Executors.newCachedThreadPool(
                    task -> {
                        Thread thread =
                                new Thread(
                                        () -> {
                                            // Per thread in libtorch, and on in a new one.
                                            JniUtils.setGradMode(false);
                                            task.run();
                                        },
                                        "fused-ops-stream");
                        thread.setDaemon(true);
                        return thread;
                    });

    private final P2pBuffers buffers;
    private final Operation operation;
    private final boolean inline;
    private CompletableFuture<Void> last = CompletableFuture.completedFuture(null);
    private volatile boolean closed;

    private HostStream(P2pBuffers buffers, Operation operation, boolean inline) {
        this.buffers = buffers;
        this.operation = operation;
        this.inline = inline;
    }

    /**
     * Returns the stream that is the calling thread.
     *
     * @param buffers the group's buffers, for signals
     * @param operation the operation under way
     * @return the stream
     */
    static HostStream current(P2pBuffers buffers, Operation operation) {
        return new HostStream(buffers, operation, true);
    }

    /**
     * Returns a stream that runs beside the calling thread.
     *
     * @param buffers the group's buffers, for signals
     * @param operation the operation under way
     * @return the stream
     */
    static HostStream side(P2pBuffers buffers, Operation operation) {
        return new HostStream(buffers, operation, false);
    }

    private record HostEvent(CompletableFuture<Void> done) implements Event {}

    private void enqueue(Runnable work) {
        if (inline) {
            work.run();
        } else {
            // Work that follows on something that failed is not done and fails with it.
            last =
                    last.thenRunAsync(
                            () -> {
                                if (!closed) {
                                    work.run();
                                }
                            },
                            POOL);
        }
    }

    @Override
    public void put(int rank, long offset, NDArray source) {
        enqueue(
                () -> {
                    try (NDArray there =
                            buffers.p2pBuffer(
                                    source.getManager(),
                                    rank,
                                    source.getShape(),
                                    Torch.scalarType(source),
                                    offset)) {
                        Torch.copy(there, source);
                    }
                });
    }

    @Override
    public void copy(NDArray destination, NDArray source) {
        enqueue(() -> Torch.copy(destination, source));
    }

    @Override
    public void signal(int rank, int epoch) {
        enqueue(() -> buffers.putSignal(rank, CHANNEL, epoch));
    }

    @Override
    public void waitSignal(int rank, int epoch) {
        enqueue(() -> buffers.waitSignal(operation, rank, CHANNEL, epoch));
    }

    @Override
    public void matmul(NDArray out, NDArray a, NDArray b) {
        enqueue(() -> Torch.mmOut(out, a, b));
    }

    @Override
    public void reduce(NDArray out, List<NDArray> parts, ReduceOp op) {
        enqueue(() -> Reductions.reduce(out, parts, op));
    }

    @Override
    public boolean isRecorded() {
        return false;
    }

    @Override
    public Event record() {
        return new HostEvent(last);
    }

    @Override
    public void waitEvent(Event event) {
        CompletableFuture<Void> done = ((HostEvent) event).done();
        if (inline) {
            join(done);
        } else {
            last = last.thenCombine(done, (a, b) -> null);
        }
    }

    @Override
    public void close() {
        closed = true;
        last.handle((value, failure) -> null).join();
    }

    private static void join(CompletableFuture<Void> future) {
        try {
            future.join();
        } catch (CompletionException e) {
            if (e.getCause() instanceof CollectiveException cause) {
                throw cause;
            }
            throw e;
        }
    }
}
