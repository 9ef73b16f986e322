// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import java.util.function.DoubleSupplier;
import java.util.function.Supplier;
import jdk.jfr.Event;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.SharedMemory;

/**
 * A stream on the CPU. The side stream has its own thread; other streams run on the calling thread.
 */
final class TracedHostStream extends TracedStream {

    private final ExecutorService thread; // null if it is the calling thread
    private CompletableFuture<Void> last = CompletableFuture.completedFuture(null);

    TracedHostStream(P2pBuffers buffers, Operation operation, Span.Stream stream, Steps steps) {
        super(buffers, operation, stream, steps);
        thread = stream == Span.Stream.SIDE ? Executors.newSingleThreadExecutor() : null;
    }

    private record HostEvent(CompletableFuture<Void> done) implements Event {}

    @Override
    void enqueue(Consumer<Supplier<DoubleSupplier>> work) {
        if (thread == null) {
            work.accept(TracedHostStream::mark);
        } else {
            last = last.thenRunAsync(() -> work.accept(TracedHostStream::mark), thread);
        }
    }

    private static DoubleSupplier mark() {
        double micros = System.nanoTime() / 1e3;
        return () -> micros;
    }

    @Override
    void copyNow(long destination, long source, long byteSize) {
        SharedMemory.copy(destination, source, byteSize);
    }

    @Override
    public Event record() {
        if (thread == null) {
            step("", () -> {});
        }
        return new HostEvent(last);
    }

    @Override
    public void waitEvent(Event event) {
        CompletableFuture<Void> done = ((HostEvent) event).done();
        if (thread == null) {
            step("wait for the side stream", () -> join(done));
        } else {
            last = last.thenCombine(done, (a, b) -> null);
        }
    }

    private static void join(CompletableFuture<Void> done) {
        try {
            done.join();
        } catch (CompletionException e) {
            if (e.getCause() instanceof RuntimeException cause) {
                throw cause;
            }
            throw e;
        }
    }

    @Override
    public void close() {
        last.handle((value, failure) -> null).join();
        if (thread != null) {
            thread.shutdown();
        }
    }
}
