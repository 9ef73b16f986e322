// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

/**
 * How ranks divide and gather {@link FullyShard} blocks; the same on all ranks. Not to be changed
 * after {@link FullyShard#apply}.
 */
public final class FullyShardPolicy {

    private boolean reshardAfterForward = true;
    private int shardRanks; // 0 for all

    /**
     * Sets whether the block is divided again after its forward pass, as FSDP2's {@code
     * reshard_after_forward}; default true. With false it stays gathered, with the graph of its
     * forward pass, until its backward pass, which then neither gathers nor computes it again: more
     * memory, less time.
     */
    public FullyShardPolicy optReshardAfterForward(boolean reshard) {
        reshardAfterForward = reshard;
        return this;
    }

    /**
     * Sets how many ranks divide the block; default all of the trainer. With fewer, groups of as
     * many consecutive ranks each hold the whole block, and all-reduce their gradients: hybrid
     * sharding, as FSDP2's with a mesh of two dimensions. Choose the ranks of a host.
     *
     * @param ranks a divisor of the number of ranks, which {@code initialize} checks
     */
    public FullyShardPolicy optShardRanks(int ranks) {
        if (ranks < 1) {
            throw new IllegalArgumentException(
                    "optShardRanks: " + ranks + " is out of range: 1 rank or more divide a block");
        }
        shardRanks = ranks;
        return this;
    }

    boolean reshardsAfterForward() {
        return reshardAfterForward;
    }

    /** Returns how many of a trainer's ranks divide the block. */
    int shardRanks(int worldSize) {
        if (shardRanks == 0) {
            return worldSize;
        }
        if (worldSize % shardRanks != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "initialize: FullyShardPolicy.optShardRanks(%d) does not divide the"
                                    + " trainer's %d ranks into equal groups; set a divisor",
                            shardRanks, worldSize));
        }
        return shardRanks;
    }
}
