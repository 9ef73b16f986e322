// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.host.SharedMemory;

/**
 * A stream on the CPU: either the calling thread, which runs work immediately, or a thread of a
 * JVM-wide pool, which is used only while there is work.
 */
final class HostP2pStream implements P2pStream {

    private static final ExecutorService POOL =
            Executors.newCachedThreadPool(
                    task -> {
                        Thread thread =
                                new Thread(
                                        () -> {
                                            // Grad mode is per thread in libtorch, and on by
                                            // default.
                                            JniUtils.setGradMode(false);
                                            task.run();
                                        },
                                        "p2p-stream");
                        thread.setDaemon(true);
                        return thread;
                    });

    private final P2pBuffers buffers;
    private final Operation operation;
    private final boolean inline;
    private CompletableFuture<Void> last = CompletableFuture.completedFuture(null);
    private volatile boolean closed;

    private HostP2pStream(P2pBuffers buffers, Operation operation, boolean inline) {
        this.buffers = buffers;
        this.operation = operation;
        this.inline = inline;
    }

    /** Returns the stream that runs work on the calling thread. */
    static HostP2pStream current(P2pBuffers buffers, Operation operation) {
        return new HostP2pStream(buffers, operation, true);
    }

    /** Returns a stream that runs concurrently with the calling thread. */
    static HostP2pStream side(P2pBuffers buffers, Operation operation) {
        return new HostP2pStream(buffers, operation, false);
    }

    private record HostEvent(CompletableFuture<Void> done) implements Event {}

    private void enqueue(Runnable work) {
        if (inline) {
            work.run();
        } else {
            // Work after a failure is skipped and fails with the same exception.
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
    public void put(int rank, long offset, long source, long byteSize) {
        buffers.checkRange(rank, offset, byteSize);
        copy(buffers.address(rank, offset), source, byteSize);
    }

    @Override
    public void copy(long destination, long source, long byteSize) {
        enqueue(() -> SharedMemory.copy(destination, source, byteSize));
    }

    @Override
    public void signal(int rank, int channel, long epoch) {
        enqueue(() -> buffers.putSignal(rank, channel, epoch));
    }

    @Override
    public void waitSignal(int rank, int channel, long epoch) {
        enqueue(() -> buffers.waitSignal(operation, rank, channel, epoch));
    }

    @Override
    public void waitSignals(int channel, long epoch) {
        for (int peer = 0; peer < buffers.worldSize(); peer++) {
            if (peer != buffers.rank()) {
                waitSignal(peer, channel, epoch);
            }
        }
    }

    @Override
    public void barrier() {
        enqueue(() -> buffers.intraNodeBarrier(operation));
    }

    @Override
    public boolean isRecorded() {
        return false;
    }

    /** A no-op: nothing is recorded on the CPU. */
    @Override
    public void keepAlive(NDArray... arrays) {}

    @Override
    public Event record() {
        return new HostEvent(last);
    }

    @Override
    public void waitEvent(Event event) {
        HostEvent recorded = (HostEvent) Required.argument("waitEvent: event", event);
        CompletableFuture<Void> done = recorded.done();
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
