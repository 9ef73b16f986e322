// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.function.ToDoubleFunction;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;

/**
 * How the ranks of a trainer hold parameters, gradients and the optimizer's state.
 *
 * <ul>
 *   <li>{@link Replicated}: each rank has all of them (DDP).
 *   <li>{@link OneMemory}: the ranks of this JVM share one copy on a CPU. A single rank uses it,
 *       too.
 *   <li>{@link ShardedOptimizer}: ranks divide the optimizer's state (ZeRO stage 1).
 *   <li>{@link FullySharded}: ranks divide parameters, gradients and optimizer state (FSDP).
 * </ul>
 *
 * <p>Methods with a {@link Replica} run on that rank's thread, except {@link #shards}. All other
 * methods run on the program's thread.
 */
public sealed interface ParameterStrategy permits WholeParameters, FullySharded {

    /** The options of the trainer's configuration. */
    record Options(ShardingStrategy sharding, GradientHook hook, long bucketBytes) {

        /** The default bytes of a bucket, as of PyTorch's DistributedDataParallel. */
        public static final long BUCKET_BYTES = 25L << 20;
    }

    /**
     * Chooses the strategy, and creates the parameters of each rank. {@code time} returns when the
     * current backward pass reduces gradients.
     */
    static ParameterStrategy load(
            Ranks ranks,
            Block block,
            Optimizer optimizer,
            Options options,
            Supplier<ReductionTime> time) {
        if (ranks.group() == null || OneMemory.suits(ranks, block, options)) {
            return new OneMemory(ranks, block, options);
        }
        return switch (options.sharding) {
            case NO_SHARD -> new Replicated(ranks, block, optimizer, options, time);
            case SHARD_OPTIMIZER -> {
                // Throws if the optimizer's state cannot be divided.
                OptimizerState state = new OptimizerState(optimizer);
                yield new ShardedOptimizer(ranks, block, optimizer, state, options, time);
            }
            case FULL_SHARD -> new FullySharded(ranks, block, optimizer);
        };
    }

    ShardingStrategy sharding();

    /** Returns whether every pass runs collectives, so that all ranks take part in it. */
    default boolean runsCollectives() {
        return sharding() == ShardingStrategy.FULL_SHARD;
    }

    /**
     * Copies the program's writes to all ranks: before the first step they are in the block's
     * arrays, later ({@code stepped}) in the first rank's.
     */
    void syncParameters(boolean stepped);

    /** Computes a block in training mode, and records it in the current gradient scope. */
    NDList forward(Replica replica, NDList data, NDList labels);

    NDList evaluate(Replica replica, NDList data);

    /** Computes a whole batch on the first rank. Neither statistics nor the batch change. */
    NDList computeWhole(NDList data, NDList labels, boolean training);

    /** Drops passes whose backward pass has not ended. */
    void discardPasses();

    /** Begins a backward pass. Its gradients are added to those of earlier passes. */
    void beginBackward();

    /**
     * Reduces a rank's gradients at the end of its backward pass; returns false if {@link #reduce}
     * has to.
     */
    boolean endBackward(Replica replica);

    void reduce();

    /**
     * Runs code on each rank that has reduced gradients, which it may change in place. Before it,
     * all ranks get the changes that the program has made to the first rank's gradients.
     *
     * @return the first rank's result
     */
    double onReduced(ToDoubleFunction<Replica> body);

    /** Returns a rank's reduced gradients, which may be changed in place until the step. */
    Collection<NDArray> gradients(Replica replica);

    double norm(Replica replica);

    boolean isZero(Replica replica);

    /**
     * Runs each rank's {@link #update}, as {@link #onReduced}. Afterwards all ranks have the
     * updated parameters.
     */
    void step(Consumer<Replica> update);

    /**
     * Calls the visitor with each array that this rank updates and its reduced gradient. Then drops
     * the gradients.
     */
    void update(Replica replica, Update visitor);

    interface Update {

        void apply(String id, NDArray array, NDArray gradient);
    }

    void zeroGradients();

    /**
     * Gathers the parameters into new arrays of the block; the result frees them. No-op if the
     * block has its arrays.
     */
    Runnable summon(NDManager owner);

    /**
     * Ends the training: the block gets the parameters, in arrays of {@code owner} if its own are
     * closed, and the optimizer loses its state if no rank has all of it.
     */
    void restore(NDManager owner);

    List<ParameterShard> shards(Replica replica);

    Map<String, TensorSpec> specs();
}
