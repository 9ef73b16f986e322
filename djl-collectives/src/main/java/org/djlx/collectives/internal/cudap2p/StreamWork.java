/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Operation;
import org.djlx.collectives.internal.gpu.GpuWork;

/** An operation on the stream that was the caller's current one. */
final class StreamWork extends GpuWork {

    private final P2pLine line;
    private final List<NDArray> held;

    /**
     * Creates the work.
     *
     * @param line where it runs
     * @param operation the operation
     * @param result its outputs
     * @param held arrays to close when it has ended
     */
    StreamWork(P2pLine line, Operation operation, List<NDArray> result, List<NDArray> held) {
        super(operation, result, line.events(), line.currentStreams(), line.isBlockingWait());
        this.line = line;
        this.held = held;
    }

    /** Ends the work, of which nothing was enqueued that could still run. */
    void fail(CollectiveException reason) {
        if (seal(reason)) {
            complete(true);
        }
    }

    @Override
    public P2pLine lane() {
        return line;
    }

    @Override
    protected void release() {
        held.forEach(NDArray::close);
    }

    @Override
    protected CollectiveException failureAtEnd() {
        return line.failureOf(operation());
    }
}
