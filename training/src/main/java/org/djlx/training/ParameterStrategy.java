// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.djlx.collectives.safetensors.TensorSpec;

/**
 * How the ranks of a trainer hold parameters, gradients and the optimizer's state.
 *
 * <ul>
 *   <li>{@link Replicated}: each rank has all of them (DDP).
 *   <li>{@link OneMemory}: the ranks of this JVM share one copy of a small model. A single rank
 *       uses it, too.
 *   <li>{@link ShardedOptimizer}: ranks divide the optimizer's state (ZeRO stage 1).
 *   <li>{@link FullySharded}: ranks divide parameters, gradients and optimizer state (FSDP).
 * </ul>
 *
 * <p>Methods with a {@link Replica} run on that rank's thread, except {@link #shards}. All other
 * methods run on the program's thread.
 */
sealed interface ParameterStrategy permits WholeParameters, FullySharded {

    /**
     * Chooses the strategy, and creates the parameters of each rank. {@code time} returns when the
     * current backward pass reduces gradients.
     */
    static ParameterStrategy load(
            Ranks ranks,
            Block block,
            Optimizer optimizer,
            DataParallelConfig settings,
            Supplier<ReductionTime> time) {
        if (ranks.group() == null || OneMemory.suits(ranks, block, settings)) {
            return new OneMemory(ranks, block, settings);
        }
        return switch (settings.shardingStrategy()) {
            case NO_SHARD -> new Replicated(ranks, block, optimizer, settings, time);
            case SHARD_OPTIMIZER -> new ShardedOptimizer(ranks, block, optimizer, settings, time);
            case FULL_SHARD -> new FullySharded(ranks, block, optimizer);
        };
    }

    /**
     * Copies the program's writes to all ranks: before the first step they are in the block's
     * arrays, later ({@code stepped}) in the first rank's.
     */
    void follow(boolean stepped);

    /** Computes a block in training mode, and records it in the current gradient scope. */
    NDList forward(Replica replica, NDList data, NDList labels);

    NDList evaluate(Replica replica, NDList data);

    /** Returns whether every pass runs collectives, so that all ranks take part in it. */
    default boolean meetsInEachPass() {
        return false;
    }

    /** Returns how many ranks of this JVM, from the first on, have reduced gradients and update. */
    int updatingRanks();

    /** Begins a backward pass. Its gradients are added to those of earlier passes. */
    void beginBackward();

    /**
     * Reduces a rank's gradients at the end of its backward pass; returns false if {@link #reduce}
     * has to.
     */
    boolean endBackward(Replica replica);

    void reduce();

    /** Remembers the first rank's reduced gradients, to recognise later changes. */
    default void noteGradients() {}

    /** Copies gradients of the first rank to all other ranks, if the program has changed them. */
    default void sendChangedGradients() {}

    /** Returns a rank's reduced gradients, which may be changed in place until the step. */
    Collection<NDArray> gradients(Replica replica);

    double norm(Replica replica);

    boolean isZero(Replica replica);

    /**
     * Calls the visitor with each array that this rank updates and its reduced gradient. Then drops
     * the gradients.
     */
    void update(Replica replica, Update visitor);

    interface Update {
        void apply(String id, NDArray array, NDArray gradient);
    }

    default void share(Replica replica) {}

    default void endStep() {}

    void zeroGradients();

    /** Drops passes whose backward pass has not ended. */
    default void forgetPasses() {}

    /** Gathers whole parameters on all ranks. Calls can be nested. */
    default void gather() {}

    /** Ends a {@link #gather}; the last call frees the gathered parameters. */
    default void release() {}

    /**
     * Gathers the parameters into new arrays of the block; closing the result frees them. No-op if
     * the block has its arrays.
     */
    default DataParallelTrainer.FullParameters summon(NDManager owner) {
        return () -> {};
    }

    /** Removes the optimizer's state if no rank has all of it. */
    default void forgetState(Optimizer optimizer) {}

    default boolean isSharded() {
        return false;
    }

    List<ParameterShard> shards(Replica replica);

    Map<String, TensorSpec> specs();
}
