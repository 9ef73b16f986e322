// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;

/** Computes the chunk for one rank, in {@link FusedOps#pipelinedProduceAndAllToAll}. */
@FunctionalInterface
public interface ChunkProducer {

    /**
     * Writes a chunk; on a GPU, enqueues the computation on the current stream.
     *
     * @param chunk the array to write all elements of, contiguous; valid only during this call
     */
    void produce(NDArray chunk, int rank);
}
