// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

/** What data-parallel ranks divide among each other, instead of each keeping all of it. */
public enum ShardingStrategy {

    /** Nothing: each rank has all parameters, gradients and optimizer state, as PyTorch's DDP. */
    NO_SHARD,

    /**
     * The optimizer's state, as ZeRO stage 1: each rank updates some of the parameters and
     * broadcasts them.
     */
    SHARD_OPTIMIZER,

    /**
     * Parameters, gradients and the optimizer's state, as ZeRO stage 3 and PyTorch's FSDP. Each
     * {@link FullyShard} block is gathered before its forward and its backward pass. If the model
     * has none, these are the children of a {@code SequentialBlock}, nested ones included, or the
     * model.
     */
    FULL_SHARD
}
