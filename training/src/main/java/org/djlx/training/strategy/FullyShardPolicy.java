// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * How ranks divide and gather {@link FullyShard} blocks; the same on all ranks. Not to be changed
 * after {@link FullyShard#apply}.
 */
public final class FullyShardPolicy {

    private boolean reshardAfterForward = true;
    private int shardRanks; // 0 for all
    private ScalarType parameterType; // null for that of each parameter
    private ScalarType reductionType; // null for that of each parameter
    private ScalarType outputType; // null for that of the block
    private boolean offload;

    /**
     * Sets whether the block is divided again after its forward pass, as FSDP2's {@code
     * reshard_after_forward}; default true. With false it stays gathered until its backward pass,
     * which then does not gather it again: more memory, less time.
     */
    public FullyShardPolicy optReshardAfterForward(boolean reshard) {
        reshardAfterForward = reshard;
        return this;
    }

    /**
     * Sets how many ranks divide the block; default all of the trainer. With fewer, each group of
     * this many consecutive ranks holds the whole block, and the groups all-reduce gradients:
     * hybrid sharding, as FSDP2's with a mesh of two dimensions. Choose the ranks of a host.
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

    /**
     * Sets the element type in which ranks gather parameters, such as {@link ScalarType#BFLOAT16},
     * to send half the bytes; default that of each parameter. Layers that {@link
     * org.djlx.training.precision.MixedPrecisionPolicy} computes in this type use the gathered
     * arrays, whose gradients have the type, too; other blocks get them cast back. Shards and the
     * optimizer's state keep their type.
     */
    public FullyShardPolicy optParameterType(ScalarType type) {
        parameterType = floating("optParameterType", type);
        return this;
    }

    /**
     * Sets the element type in which ranks reduce gradients, as FSDP2's {@code reduce_dtype};
     * default that of each parameter. The sum over ranks is rounded to it, then cast back.
     */
    public FullyShardPolicy optReductionType(ScalarType type) {
        reductionType = floating("optReductionType", type);
        return this;
    }

    /**
     * Sets the element type to which floating-point outputs of the block are cast, as FSDP2's
     * {@code output_dtype}; default the block's own.
     */
    public FullyShardPolicy optOutputType(ScalarType type) {
        outputType = floating("optOutputType", type);
        return this;
    }

    /**
     * Sets whether shards, their gradients and the optimizer's state are in the memory of the host,
     * as with FSDP2's {@code CPUOffloadPolicy}; default false. The optimizer then runs on the CPU.
     * Each gather copies a shard to the GPU, each reduction one to the host. No effect on CPUs.
     */
    public FullyShardPolicy optCpuOffload(boolean offload) {
        this.offload = offload;
        return this;
    }

    private static ScalarType floating(String option, ScalarType type) {
        if (!Required.argument(option + ": the type", type).isFloatingPoint()) {
            throw new IllegalArgumentException(
                    option
                            + ": "
                            + type
                            + " is not a floating-point type such as FLOAT32 or BFLOAT16");
        }
        return type;
    }

    /** Returns the type in which arrays of a type are gathered. */
    ScalarType parameterType(ScalarType own) {
        return parameterType == null || !own.isFloatingPoint() ? own : parameterType;
    }

    /** Returns the type in which gradients of a type are reduced. */
    ScalarType reductionType(ScalarType own) {
        return reductionType == null || !own.isFloatingPoint() ? own : reductionType;
    }

    /** Returns the block's outputs in the type of this policy. */
    NDList cast(NDList outputs) {
        NDList cast = new NDList();
        for (NDArray output : outputs) {
            ScalarType own = Torch.scalarType(output);
            boolean differs = outputType != null && own.isFloatingPoint() && own != outputType;
            NDArray result = differs ? Torch.cast(output, outputType) : output;
            result.setName(output.getName());
            cast.add(result);
        }
        return cast;
    }

    boolean offloads() {
        return offload;
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
