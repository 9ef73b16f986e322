// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.gpu.GpuWork;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.TensorHold;

/** An operation on the stream that was current when it was called. */
final class StreamWork extends GpuWork {

    private final P2pQueue queue;
    private final long stream; // its handle
    private List<TensorHold> holds = List.of();

    StreamWork(P2pQueue queue, CudaStream stream, Operation operation, List<NDArray> result) {
        super(operation, result, queue.events(), queue.currentStreams(), queue.isBlockingWait());
        this.queue = queue;
        this.stream = stream.handle();
    }

    @Override
    public P2pQueue queue() {
        return queue;
    }

    @Override
    protected boolean isOn(CudaStream other) {
        return other.handle() == stream;
    }

    /**
     * Holds the memory of the outputs. The operation's code holds all other memory that it uses.
     */
    void hold() {
        if (!result().isEmpty()) {
            holds = TensorHold.all(result().toArray(new NDArray[0]));
        }
    }

    @Override
    protected void release() {
        holds.forEach(TensorHold::close);
    }

    @Override
    protected CollectiveException failureAtEnd() {
        return queue.failureOf(operation());
    }
}
