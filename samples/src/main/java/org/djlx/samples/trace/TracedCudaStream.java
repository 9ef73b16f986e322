// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import java.util.function.Consumer;
import java.util.function.DoubleSupplier;
import java.util.function.Supplier;
import jdk.jfr.Event;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;

/** A CUDA stream with an event before and after each step. */
final class TracedCudaStream extends TracedStream {

    private final CudaDevice device;
    private final CudaStream cuda;
    private final CudaEvent start;
    private final boolean isCurrent;

    /**
     * Creates the stream of an operation. The caller owns the device and the CUDA stream.
     *
     * @param start the origin of times, recorded on a stream of the same GPU
     */
    TracedCudaStream(
            P2pBuffers buffers,
            Operation operation,
            Span.Stream stream,
            Steps steps,
            CudaDevice device,
            CudaStream cuda,
            CudaEvent start) {
        super(buffers, operation, stream, steps);
        this.device = device;
        this.cuda = cuda;
        this.start = start;
        this.isCurrent = stream == Span.Stream.CURRENT;
    }

    private record StreamEvent(CudaEvent event) implements Event {}

    /** Makes this stream libtorch's current stream: the buffers signal, wait and meet on that. */
    @Override
    void enqueue(Consumer<Supplier<DoubleSupplier>> work) {
        if (isCurrent) {
            work.accept(this::mark);
            return;
        }
        CudaStreamGuard guard = Torch.cudaStreamGuard(device.device(), cuda.handle());
        try {
            work.accept(this::mark);
        } finally {
            guard.close();
        }
    }

    /** Records an event, which is never freed, because a process traces only one operator. */
    private DoubleSupplier mark() {
        CudaEvent event = CudaEvent.createTiming(device);
        event.record(cuda);
        return () -> 1000.0 * event.elapsedMillisSince(start);
    }

    @Override
    void copyNow(long destination, long source, long byteSize) {
        cuda.copyAsync(destination, source, byteSize);
    }

    @Override
    public Event record() {
        step("", () -> {});
        CudaEvent event = CudaEvent.create(device);
        event.record(cuda);
        return new StreamEvent(event);
    }

    @Override
    public void waitEvent(Event event) {
        step("wait for the other stream", () -> cuda.waitEvent(((StreamEvent) event).event()));
    }

    /** No-op: enqueued work continues. */
    @Override
    public void close() {}
}
