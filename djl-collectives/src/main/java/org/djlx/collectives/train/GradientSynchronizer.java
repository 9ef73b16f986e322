/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.train;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;

/**
 * Makes the gradients of processes one, for programs that keep DJL's engine {@code PyTorch} and
 * train on one device each: after each batch, before the step.
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
 * <p>The block is on the group's device. {@code EasyTrain} tells listeners of a batch between the
 * backward pass and the step; a loop of one's own does so by {@code trainer.notifyListeners}, or
 * calls {@link #synchronize} itself. It reduces all gradients then, in one go: the engine {@code
 * PyTorch-P2P} does so while the backward pass still runs.
 */
public final class GradientSynchronizer extends TrainingListenerAdapter {

    private final ProcessGroup group;
    private final GradientReduction reduction;

    /**
     * Creates a listener.
     *
     * @param group this rank's handle on the group of all processes, which stays the caller's
     * @param reduction how gradients become one
     */
    public GradientSynchronizer(ProcessGroup group, GradientReduction reduction) {
        if (group == null || reduction == null) {
            throw new IllegalArgumentException(
                    "GradientSynchronizer: the group (" + group + ") or the reduction is null");
        }
        this.group = group;
        this.reduction = reduction;
    }

    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        synchronize(trainer.getModel().getBlock());
    }

    /**
     * Reduces the gradients of a block; called on all ranks.
     *
     * @param block the block, the same on all ranks but for its parameters' values
     */
    public void synchronize(Block block) {
        List<NDArray> gradients = new ArrayList<>();
        try {
            for (Parameter parameter : unique(block)) {
                if (parameter.requiresGradient()) {
                    NDArray array = parameter.getArray();
                    NDArray gradient = JniUtils.getGradient((PtNDArray) array);
                    if (gradient == null) {
                        throw new IllegalStateException(
                                "GradientSynchronizer: no gradient has reached the parameter '"
                                        + parameter.getName()
                                        + "'; freeze it on all ranks");
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
     * Gives all ranks the parameters of rank 0; called on all ranks.
     *
     * @param block an initialised block, the same on all ranks but for its parameters' values
     * @param group the ranks
     */
    public static void broadcastParameters(Block block, ProcessGroup group) {
        if (block == null || group == null) {
            throw new IllegalArgumentException(
                    "broadcastParameters: the " + (block == null ? "block" : "group") + " is null");
        }
        List<Work> works = new ArrayList<>();
        for (Parameter parameter : unique(block)) {
            works.add(group.broadcast(parameter.getArray(), 0));
        }
        works.forEach(Work::await);
    }

    /** Returns a block's parameters in its own order, of which it may share some. */
    private static List<Parameter> unique(Block block) {
        Map<Parameter, Parameter> seen = new IdentityHashMap<>();
        List<Parameter> unique = new ArrayList<>();
        for (Parameter parameter : block.getParameters().values()) {
            if (seen.put(parameter, parameter) == null) {
                unique.add(parameter);
            }
        }
        return unique;
    }
}
