// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import ai.djl.ndarray.NDArray;
import java.util.function.Consumer;
import java.util.function.DoubleSupplier;
import java.util.function.Supplier;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;

/**
 * A stream that runs the same steps as the stream of the group's buffers, and records when each
 * step runs. It does not wrap the buffers' stream, because only the executing thread or CUDA stream
 * knows when a step begins.
 */
abstract class TracedStream implements P2pStream {

    private final P2pBuffers buffers;
    private final Operation operation;
    private final Span.Stream stream;
    private final Steps steps;

    TracedStream(P2pBuffers buffers, Operation operation, Span.Stream stream, Steps steps) {
        this.buffers = buffers;
        this.operation = operation;
        this.stream = stream;
        this.steps = steps;
    }

    /** Adds work to the stream. When the work runs, it gets the timeline of {@link Steps#run}. */
    abstract void enqueue(Consumer<Supplier<DoubleSupplier>> work);

    /** Copies; called when the work runs. */
    abstract void copyNow(long destination, long source, long byteSize);

    /** Adds a step. A step without a name only ends the computation before it. */
    final void step(String name, Runnable work) {
        enqueue(timeline -> steps.run(stream, timeline, name, work));
    }

    @Override
    public void put(int rank, long offset, long source, long byteSize) {
        long destination = buffers.address(rank, offset);
        step(
                "put " + byteSize + " B to rank " + rank,
                () -> copyNow(destination, source, byteSize));
    }

    @Override
    public void copy(long destination, long source, long byteSize) {
        step("copy " + byteSize + " B", () -> copyNow(destination, source, byteSize));
    }

    @Override
    public void signal(int rank, int channel, int epoch) {
        step("signal rank " + rank, () -> buffers.putSignal(rank, channel, epoch));
    }

    @Override
    public void waitSignal(int rank, int channel, int epoch) {
        step("wait for rank " + rank, () -> buffers.waitSignal(operation, rank, channel, epoch));
    }

    @Override
    public void waitSignals(int channel, int epoch) {
        for (int peer = 0; peer < buffers.worldSize(); peer++) {
            if (peer != buffers.rank()) {
                waitSignal(peer, channel, epoch);
            }
        }
    }

    @Override
    public void barrier() {
        step("barrier", () -> buffers.intraNodeBarrier(operation));
    }

    @Override
    public boolean isRecorded() {
        return false;
    }

    /** Does nothing: nothing is recorded. */
    @Override
    public void keepAlive(NDArray... arrays) {}
}
