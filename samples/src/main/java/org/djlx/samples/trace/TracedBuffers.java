// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A group's P2P buffers, with streams that record their steps between {@link #begin} and {@link
 * #end}. They have no kernel signals, because operators must not take the fused path, which has no
 * steps to record.
 */
final class TracedBuffers extends P2pBuffers implements AutoCloseable {

    private final P2pBuffers inner;
    private final CudaDevice device; // null on the CPU
    private CudaStream side;
    private CudaEvent start;
    private Steps steps; // null while nothing is recorded

    /**
     * Wraps the buffers of a rank.
     *
     * @param device the rank's GPU, owned by this object from now on; null on the CPU
     */
    TracedBuffers(P2pBuffers inner, CudaDevice device) {
        super(
                inner.rank(),
                inner.worldSize(),
                inner.bufferSize(),
                inner.heapSize(),
                inner.channels());
        this.inner = inner;
        this.device = device;
    }

    /** Starts to record steps; all ranks call it. */
    void begin() {
        steps = new Steps();
    }

    /** Stops recording after the operation is done; returns its steps. */
    List<Span> end() {
        List<Span> spans = steps.spans();
        steps = null;
        return spans;
    }

    @Override
    public P2pStream currentStream(Operation operation) {
        if (steps == null) {
            return inner.currentStream(operation);
        }
        // The barrier is the common origin of time: GPUs share no clock.
        inner.intraNodeBarrier(operation);
        if (device == null) {
            return begun(new TracedHostStream(inner, operation, Span.Stream.CURRENT, steps));
        }
        CudaStream current = CudaStream.wrap(device, Torch.currentCudaStream(device.device()));
        start = CudaEvent.createTiming(device);
        start.record(current);
        return begun(cudaStream(operation, Span.Stream.CURRENT, current));
    }

    /** Starts the first computation. */
    private static P2pStream begun(TracedStream stream) {
        stream.step("", () -> {});
        return stream;
    }

    @Override
    public P2pStream sideStream(Operation operation) {
        if (steps == null) {
            return inner.sideStream(operation);
        }
        if (device == null) {
            return new TracedHostStream(inner, operation, Span.Stream.SIDE, steps);
        }
        if (side == null) {
            side = CudaStream.create(device, device.highestStreamPriority());
        }
        return cudaStream(operation, Span.Stream.SIDE, side);
    }

    private TracedStream cudaStream(Operation operation, Span.Stream stream, CudaStream cuda) {
        return new TracedCudaStream(inner, operation, stream, steps, device, cuda, start);
    }

    @Override
    protected NDArray view(NDManager manager, int rank, Shape shape, ScalarType type, long offset) {
        return inner.p2pBuffer(manager, rank, shape, type, offset);
    }

    @Override
    public int epoch(Operation operation) {
        return inner.epoch(operation);
    }

    @Override
    public void putSignal(int rank, int channel, int epoch) {
        inner.putSignal(rank, channel, epoch);
    }

    @Override
    public void waitSignal(Operation operation, int rank, int channel, int epoch) {
        inner.waitSignal(operation, rank, channel, epoch);
    }

    @Override
    public void awaitAgreement(Operation operation) {
        inner.awaitAgreement(operation);
    }

    @Override
    public void intraNodeBarrier(Operation operation) {
        inner.intraNodeBarrier(operation);
    }

    @Override
    protected void barrier(Operation operation, int[] ranks) {
        inner.intraNodeBarrier(operation, ranks);
    }

    @Override
    public void close() {
        if (side != null) {
            side.close();
        }
        if (device != null) {
            device.close();
        }
    }
}
