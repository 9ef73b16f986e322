/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import org.djlx.nativeops.CudaGraph;
import org.djlx.nativeops.CudaStream;

/**
 * Records into CUDA graphs, which are launched on the stream that was recorded.
 *
 * @param stream not the default one; used for nothing but what the rank measures, so that libtorch
 *     hands out no memory of a graph
 */
record CudaRecorder(CudaStream stream) implements Recorder {

    @Override
    public Recording record(Runnable work) {
        CudaGraph graph = CudaGraph.capture(stream, work);
        return new Recording() {
            @Override
            public void launch() {
                graph.launch(stream);
            }

            @Override
            public void close() {
                graph.close();
            }
        };
    }
}
