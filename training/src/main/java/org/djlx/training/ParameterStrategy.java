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
 * How the ranks of a trainer hold parameters, gradients and the optimizer's state: as {@linkplain
 * Replicated copies}, in {@linkplain OneMemory one memory}, with a {@linkplain ShardedOptimizer
 * divided optimizer} or {@linkplain FullySharded fully divided}. Methods with a {@link Replica} run
 * on that rank's thread, the others on the program's.
 */
sealed interface ParameterStrategy permits WholeParameters, FullySharded {

    /**
     * Creates the parameters of each rank.
     *
     * @param block the initialised block
     * @param time when backward passes reduce gradients
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
     * Copies to all ranks what the program has written to parameters.
     *
     * @param stepped whether a step has updated the parameters; before, the block's arrays count
     */
    void follow(boolean stepped);

    /** Computes a block in training mode, and records it in the current gradient scope. */
    NDList forward(Replica replica, NDList data, NDList labels);

    /** Computes a block in evaluation mode. */
    NDList evaluate(Replica replica, NDList data);

    /** Returns whether every pass runs collectives, so that all ranks take part in it. */
    default boolean meetsInEachPass() {
        return false;
    }

    /** Returns the number of ranks of this JVM that have reduced gradients, and update. */
    int updatingRanks();

    /** Begins a backward pass; keeps gradients that earlier passes have reduced. */
    void beginBackward();

    /**
     * Reduces a rank's gradients at the end of its backward pass.
     *
     * @return false to leave it to {@link #reduce}
     */
    boolean endBackward(Replica replica);

    /** Reduces the gradients of all ranks. */
    void reduce();

    /** Notes the first rank's reduced gradients, so that later changes are recognised. */
    default void noteGradients() {}

    /** Copies the first rank's gradients that the program has changed to all other ranks. */
    default void sendChangedGradients() {}

    /** Returns a rank's reduced gradients, which may be changed in place until the step. */
    Collection<NDArray> gradients(Replica replica);

    /** Returns the norm of the reduced gradients of all ranks together. */
    double norm(Replica replica);

    /** Returns whether all reduced gradients are zero. */
    boolean isZero(Replica replica);

    /** Passes each array that a rank updates and its gradient to a visitor. Drops gradients. */
    void update(Replica replica, Update visitor);

    /** Updates an array. */
    interface Update {
        void apply(String id, NDArray array, NDArray gradient);
    }

    /** Sends a rank's updates to the ranks that need them. */
    default void share(Replica replica) {}

    /** Ends a step on all ranks. */
    default void endStep() {}

    void zeroGradients();

    /** Drops passes whose backward pass has not ended. */
    default void forgetPasses() {}

    /** Gathers parameters until as many calls of {@link #release}. */
    default void gather() {}

    default void release() {}

    /**
     * Gives the block whole arrays.
     *
     * @param owner the manager of new arrays
     * @return frees the arrays
     */
    default DataParallelTrainer.FullParameters summon(NDManager owner) {
        return () -> {};
    }

    /** Removes the optimizer's state if no rank has all of it. */
    default void forgetState(Optimizer optimizer) {}

    /** Returns whether ranks divide parameters or the optimizer's state among each other. */
    default boolean isSharded() {
        return false;
    }

    /** Returns what a rank holds of the parameters. */
    List<ParameterShard> shards(Replica replica);

    /** Returns the type and shape of each whole parameter, by its name. */
    Map<String, TensorSpec> specs();
}
