// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.precision;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import java.util.Optional;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.host.Required;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.Recomputation;
import org.djlx.training.internal.WrapperBlock;

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
public final class ActivationCheckpoint extends WrapperBlock {

    private ActivationCheckpoint(Block block) {
        super(block);
    }

    /** Wraps a block. Names of parameters and files stay those of the block. */
    public static ActivationCheckpoint wrap(Block block) {
        return new ActivationCheckpoint(
                Required.argument("ActivationCheckpoint: the block", block));
    }

    @Override
    protected NDList compute(
            ParameterStore store,
            NDList data,
            NDList labels,
            boolean training,
            PairList<String, Object> params) {
        Optional<GradientScope> scope = GradientScope.current();
        if (training
                && store instanceof RankStore own
                && scope.isPresent()
                && JniUtils.isGradMode()
                && !Recomputation.isRunning()
                && Recomputation.isTrained(block(), data)) {
            Recomputation recomputation = own.recomputation(block());
            if (recomputation.mode(data, labels) != Recomputation.Mode.KEPT) {
                return recomputation.forward(data, labels, scope.get());
            }
        }
        return forward(store, data, labels, training, params);
    }
}
