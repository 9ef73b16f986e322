// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;

/** Computes with one rank's shard, in {@link FusedOps#pipelinedAllGather}. */
@FunctionalInterface
public interface ShardConsumer {

    /**
     * Computes with a shard; on a GPU, enqueues the computation on the current stream.
     *
     * @param shard the shard; valid only during this call. Copy what is needed later
     */
    void consume(NDArray shard, int rank);
}
