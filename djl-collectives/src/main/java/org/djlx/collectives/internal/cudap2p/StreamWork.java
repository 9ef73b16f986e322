/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Operation;
import org.djlx.collectives.internal.gpu.GpuWork;
import org.djlx.nativeops.CudaStream;

/** An operation on the stream that was the caller's current one. */
final class StreamWork extends GpuWork {

    private final P2pQueue queue;
    private final CudaStream stream;

    /**
     * Creates the work.
     *
     * @param queue where it runs
     * @param stream the caller's current stream
     * @param operation the operation
     */
    StreamWork(P2pQueue queue, CudaStream stream, Operation operation) {
        super(operation, List.of(), queue.events(), queue.currentStreams(), queue.isBlockingWait());
        this.queue = queue;
        this.stream = stream;
    }

    /** Ends the work, of which nothing was enqueued that could still run. */
    void fail(CollectiveException reason) {
        if (seal(reason)) {
            complete(true);
        }
    }

    @Override
    public P2pQueue queue() {
        return queue;
    }

    @Override
    protected boolean isOn(CudaStream other) {
        return other == stream;
    }

    /** Holds nothing: what the operation works on is for its code to keep. */
    @Override
    protected void release() {}

    @Override
    protected CollectiveException failureAtEnd() {
        return queue.failureOf(operation());
    }
}
