// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.gpu.GpuWork;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaStream;

/** An operation on the stream that was current when it was called. */
final class StreamWork extends GpuWork {

    private final P2pQueue queue;
    private final long stream; // its handle
    private P2pQueue.Body body; // null once released: it may refer to the group

    StreamWork(
            P2pQueue queue,
            CudaStream stream,
            Operation operation,
            P2pQueue.Body body,
            List<NDArray> result) {
        super(operation, result, queue.events(), queue.currentStreams(), queue.isBlockingWait());
        this.queue = queue;
        this.stream = stream.handle();
        this.body = body;
    }

    @Override
    public P2pQueue queue() {
        return queue;
    }

    @Override
    protected boolean isOn(CudaStream other) {
        return other.handle() == stream;
    }

    @Override
    protected void release() {
        P2pQueue.Body ended = body;
        body = null;
        ended.release();
    }

    @Override
    protected CollectiveException failureAtEnd() {
        return queue.failureOf(operation());
    }
}
