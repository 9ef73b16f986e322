/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.trace;

import java.util.function.Consumer;
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
    private final Timeline timeline;
    private final boolean isCurrent;

    /** The device and the CUDA stream stay the caller's. */
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
        this.timeline = Timeline.of(device, cuda, start);
        this.isCurrent = stream == Span.Stream.CURRENT;
    }

    private record StreamEvent(CudaEvent event) implements Event {}

    /** libtorch's current stream sends the signals and waits for them. */
    @Override
    void enqueue(Consumer<Timeline> work) {
        if (isCurrent) {
            work.accept(timeline);
            return;
        }
        CudaStreamGuard guard = Torch.cudaStreamGuard(device.device(), cuda.handle());
        try {
            work.accept(timeline);
        } finally {
            guard.close();
        }
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

    /** No-op: enqueued work goes on. */
    @Override
    public void close() {}
}
