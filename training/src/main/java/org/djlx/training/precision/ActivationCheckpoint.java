// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.precision;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import java.util.Optional;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.Recomputation;

/**
 * A block whose forward pass keeps only its inputs and outputs, as PyTorch's {@code
 * checkpoint_wrapper}: the backward pass computes the block again. Wrap each layer of a deep model
 * (Chen et al., 2016, <a href="https://arxiv.org/abs/1604.06174">arXiv:1604.06174</a>).
 *
 * <ul>
 *   <li>Losses and gradients equal those of the block; if the block uses its input several times,
 *       its gradients are added in another order. Statistics of batch normalisation change once.
 *   <li>The first training pass computes the block three times, to find out whether it draws random
 *       numbers. If it does, the backward pass draws the same again, and compares the predictions.
 *   <li>With several ranks in one JVM, which share libtorch's generators, a block that draws random
 *       numbers keeps its graph; run one rank per process.
 *   <li>In evaluation, outside of a {@link org.djlx.training.DataParallelTrainer}, and within
 *       another such block, the block is computed as it is. {@link
 *       org.djlx.training.strategy.ShardingStrategy#FULL_SHARD} needs no wrapper.
 * </ul>
 */
public final class ActivationCheckpoint extends AbstractBlock {

    private Block block; // not final: trainers replace layers

    private ActivationCheckpoint(Block block) {
        this.block = addChildBlock("block", block);
    }

    /** Wraps a block. Its parameters' names get a prefix, as those of any child block. */
    public static ActivationCheckpoint wrap(Block block) {
        return new ActivationCheckpoint(
                Required.argument("ActivationCheckpoint: the block", block));
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        return training
                ? train(store, inputs, null, params)
                : block.forward(store, inputs, false, params);
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList data, NDList labels, PairList<String, Object> params) {
        return train(store, data, labels, params);
    }

    private NDList train(
            ParameterStore store, NDList data, NDList labels, PairList<String, Object> params) {
        Optional<GradientScope> scope = GradientScope.current();
        if (store instanceof RankStore own
                && scope.isPresent()
                && JniUtils.isGradMode()
                && !Recomputation.isRunning()
                && isTrained(own, data)) {
            Recomputation recomputation = own.recomputation(block);
            if (recomputation.mode(data, labels) != Recomputation.Mode.KEPT) {
                return recomputation.forward(data, labels, scope.get(), () -> {}, () -> {});
            }
        }
        return labels == null
                ? block.forward(store, data, true, params)
                : block.forward(store, data, labels, params);
    }

    private boolean isTrained(RankStore store, NDList data) {
        return data.stream().anyMatch(Torch::requiresGradient)
                || block.getParameters().values().stream()
                        .anyMatch(own -> Torch.requiresGradient(store.array(own)));
    }

    @Override
    protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
        block.initialize(manager, type, shapes);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return block.getOutputShapes(inputShapes);
    }
}
