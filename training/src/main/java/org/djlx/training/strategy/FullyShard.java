// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import org.djlx.nativeops.host.Required;
import org.djlx.training.internal.BlockReplacement;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.WrapperBlock;

/**
 * A block that ranks with {@link ShardingStrategy#FULL_SHARD} gather as a whole, as PyTorch's
 * {@code fully_shard}. Without that strategy, the block is computed as it is.
 *
 * <pre>{@code
 * Block sharded = FullyShard.apply(block, each -> each instanceof TransformerLayer);
 * model.setBlock(sharded);
 * }</pre>
 *
 * <ul>
 *   <li>A parameter belongs to the innermost such block that contains all blocks with it. In the
 *       example, a parameter that two layers share belongs to the model.
 *   <li>A block that contains no such block is divided again after its forward pass; the backward
 *       pass gathers it again. {@link FullyShardPolicy#optReshardAfterForward} keeps it gathered. A
 *       block that contains others stays gathered until its backward pass ends.
 *   <li>Blocks share two buffers for their parameters. So a block must not keep a parameter, or a
 *       view of one, after its forward pass, and the loss must not use a result that the block did
 *       not return, which the backward pass refuses. Views that it returns are copied.
 *   <li>Parameter names and saved files are those of the block alone.
 *   <li>Blocks are gathered in the order of the last pass, which must be the same on all ranks.
 * </ul>
 */
public final class FullyShard extends WrapperBlock {

    private final FullyShardPolicy policy;
    private final boolean automatic; // whether a trainer has wrapped the block

    private FullyShard(Block block, FullyShardPolicy policy, boolean automatic) {
        super(block);
        this.policy = policy;
        this.automatic = automatic;
    }

    FullyShardPolicy policy() {
        return policy;
    }

    /** As {@link #apply(Block, Predicate, FullyShardPolicy)}, with the default policy. */
    public static FullyShard apply(Block block, Predicate<Block> units) {
        return apply(block, units, new FullyShardPolicy());
    }

    /**
     * Wraps a block, and the blocks within it for which {@code units} is true. Replaces the latter
     * in the fields, lists and arrays of their parents. Blocks that are wrapped already stay as
     * they are.
     *
     * @return the block to train
     * @throws IllegalArgumentException if a field, list or array cannot hold the replacement
     */
    public static FullyShard apply(Block block, Predicate<Block> units, FullyShardPolicy policy) {
        return apply(
                Required.argument("FullyShard.apply: the block", block),
                Required.argument("FullyShard.apply: the predicate", units),
                Required.argument("FullyShard.apply: the policy", policy),
                false);
    }

    private static FullyShard apply(
            Block block, Predicate<Block> units, FullyShardPolicy policy, boolean automatic) {
        Set<Block> wrapped = wrapped(block);
        return (FullyShard)
                BlockReplacement.apply(
                        block,
                        each ->
                                each instanceof FullyShard
                                                || wrapped.contains(each)
                                                || each != block && !units.test(each)
                                        ? each
                                        : new FullyShard(each, policy, automatic),
                        "FullyShard.apply: blocks in %1$s cannot be replaced, so let the predicate"
                                + " choose %1$s as a whole");
    }

    /** Returns the blocks that are wrapped within a block. */
    private static Set<Block> wrapped(Block block) {
        Set<Block> wrapped = Collections.newSetFromMap(new IdentityHashMap<>());
        collectWrapped(block, wrapped);
        return wrapped;
    }

    private static void collectWrapped(Block block, Set<Block> wrapped) {
        if (block instanceof FullyShard own) {
            wrapped.add(own.block());
        }
        block.getChildren().values().forEach(child -> collectWrapped(child, wrapped));
    }

    /**
     * Wraps a model; also the children of a SequentialBlock, unless the program has wrapped blocks.
     */
    static FullyShard ofModel(Block model) {
        if (!wrapped(model).isEmpty()) {
            return apply(model, block -> false, new FullyShardPolicy(), true);
        }
        List<Block> children = new ArrayList<>();
        ForwardPass.collect(model, children);
        return apply(
                model,
                block -> children.contains(block) && !block.getParameters().isEmpty(),
                new FullyShardPolicy(),
                true);
    }

    /** Unwraps the blocks that {@link #ofModel} has wrapped. */
    void undoAutomatic() {
        BlockReplacement.apply(
                block(),
                each -> each instanceof FullyShard own && own.automatic ? own.block() : each,
                "close: blocks in %s cannot be restored");
    }

    @Override
    protected NDList compute(
            ParameterStore store,
            NDList data,
            NDList labels,
            boolean training,
            PairList<String, Object> params) {
        return policy.cast(
                store instanceof RankStore own && own.units().isPresent()
                        ? own.units().get().forward(this, own, data, labels, training)
                        : forward(store, data, labels, training, params));
    }
}
