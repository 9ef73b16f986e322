// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.Torch;

/**
 * All-reduces gradients after each batch, for programs that keep DJL's engine {@code PyTorch} and
 * train one process per device.
 *
 * <pre>{@code
 * config.addTrainingListeners(new GradientSynchronizer(group, GradientReduction.MEAN));
 * try (Trainer trainer = model.newTrainer(config)) {
 *     trainer.initialize(shape);
 *     GradientSynchronizer.broadcastParameters(model.getBlock(), group);
 *     EasyTrain.fit(trainer, epochs, dataset, null);
 * }
 * }</pre>
 *
 * <p>The block must be on the group's device. {@code EasyTrain} notifies listeners between the
 * backward pass and the step. In your own training loop, call {@code trainer.notifyListeners}
 * there, or {@link #synchronize}. All gradients are reduced together, after the backward pass; the
 * engine {@code PyTorch-P2P} overlaps both.
 */
public final class GradientSynchronizer extends TrainingListenerAdapter {

    private final ProcessGroup group;
    private final GradientReduction reduction;

    public GradientSynchronizer(ProcessGroup group, GradientReduction reduction) {
        this.group = Required.argument("GradientSynchronizer: group", group);
        this.reduction = Required.argument("GradientSynchronizer: reduction", reduction);
    }

    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        synchronize(trainer.getModel().getBlock());
    }

    /**
     * All-reduces the gradients of a block. All ranks must call it, with blocks that differ only in
     * the values of their parameters. The gradient of a parameter that a rank's forward pass has
     * not used counts as zero.
     */
    public void synchronize(Block block) {
        List<NDArray> gradients = new ArrayList<>();
        try {
            for (Parameter parameter : unique(block).toList()) {
                if (parameter.requiresGradient()) {
                    NDArray array = parameter.getArray();
                    NDArray gradient = JniUtils.getGradient((PtNDArray) array);
                    if (gradient == null) { // The forward pass of this rank has not used it.
                        gradient = Torch.zerosLike(array);
                        Torch.setGradient(array, gradient);
                    }
                    gradients.add(gradient);
                }
            }
            if (!gradients.isEmpty()) {
                group.allReduceCoalesced(gradients, reduction.op()).await();
            }
        } finally {
            gradients.forEach(NDArray::close);
        }
    }

    /**
     * Broadcasts the parameters of rank 0. All ranks must call it, with initialised blocks that
     * differ only in the values of their parameters.
     */
    public static void broadcastParameters(Block block, ProcessGroup group) {
        Required.argument("broadcastParameters: block", block);
        Required.argument("broadcastParameters: group", group);
        List<Work> works = unique(block).map(each -> group.broadcast(each.getArray(), 0)).toList();
        works.forEach(Work::await);
    }

    private static Stream<Parameter> unique(Block block) {
        return block.getParameters().values().stream().distinct();
    }
}
