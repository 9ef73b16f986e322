/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.CudaP2pBuffers;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.Torch;

/**
 * A stream on a GPU: the caller's current one, or the group's for what is sent beside it. Nothing
 * here waits on the host: loading a kernel or taking memory from the driver behind a wait for
 * another rank could deadlock, so kernels are loaded and arrays made before.
 */
final class CudaOpStream implements OpStream {

    // One signal word a pair of ranks is enough: a rank raises it once an operation.
    private static final int CHANNEL = 0;

    private final CudaP2pBuffers buffers;
    private final CudaStream stream;
    private final boolean current;

    private CudaOpStream(CudaP2pBuffers buffers, CudaStream stream, boolean current) {
        this.buffers = buffers;
        this.stream = stream;
        this.current = current;
    }

    static CudaOpStream current(CudaP2pBuffers buffers) {
        return new CudaOpStream(buffers, buffers.currentStream(), true);
    }

    static CudaOpStream side(CudaP2pBuffers buffers) {
        return new CudaOpStream(buffers, buffers.stream(), false);
    }

    private record StreamEvent(CudaEvent event) implements Event {}

    @Override
    public void put(int rank, long offset, NDArray source) {
        buffers.put(stream, rank, offset, source);
        keepForGraph(source);
    }

    @Override
    public void copy(NDArray destination, NDArray source) {
        stream.copyAsync(
                Torch.dataPointer(destination),
                Torch.dataPointer(source),
                CudaP2pBuffers.byteSize(source));
        keepForGraph(destination, source);
    }

    /** Each replay of a graph uses the arrays again. */
    private void keepForGraph(NDArray... arrays) {
        if (buffers.isCapturing()) {
            stream.keepAlive(arrays);
        }
    }

    @Override
    public void signal(int rank, int epoch) {
        buffers.putSignal(stream, rank, CHANNEL, epoch);
    }

    @Override
    public void waitSignal(int rank, int epoch) {
        buffers.waitSignal(stream, rank, CHANNEL, epoch);
    }

    @Override
    public void matmul(NDArray out, NDArray a, NDArray b) {
        requireCurrent("matmul");
        Torch.mmOut(out, a, b);
        keepForGraph(out, a, b);
    }

    @Override
    public void reduce(NDArray out, List<NDArray> parts, ReduceOp op) {
        requireCurrent("reduce");
        buffers.reducer().reduce(stream, out, parts, op);
        keepForGraph(out);
    }

    /** libtorch's operators run on the thread's current stream, whatever stream this is. */
    private void requireCurrent(String work) {
        if (!current) {
            throw new IllegalStateException(work + " is for the current stream");
        }
    }

    @Override
    public boolean isRecorded() {
        return buffers.isCapturing();
    }

    @Override
    public Event record() {
        CudaEvent event = CudaEvent.create(buffers.device());
        event.record(stream);
        return new StreamEvent(event);
    }

    @Override
    public void waitEvent(Event event) {
        // An event that is closed is freed by the driver once what waits for it has gone on.
        try (CudaEvent happened = ((StreamEvent) event).event()) {
            stream.waitEvent(happened);
        }
    }

    /** Does nothing: the group's stream lives on. */
    @Override
    public void close() {}
}
