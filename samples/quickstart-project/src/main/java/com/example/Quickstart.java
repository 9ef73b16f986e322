// SPDX-License-Identifier: Apache-2.0
package com.example;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.DataParallelConfig;
import org.djlx.fusedops.FusedOps;

/**
 * Trains a network on two CPU ranks of this JVM, then multiplies matrices with a fused operator.
 */
public final class Quickstart {

    private static final int RANKS = 2;

    private Quickstart() {}

    public static void main(String[] args) throws Exception {
        System.out.println(Engine.getEngine(P2pEngine.NAME).getVersion());
        float loss = train(20);
        float difference = multiply();
        System.out.printf("loss after 20 epochs: %.4f%n", loss);
        System.out.printf("largest difference of the fused operator: %.1e%n", difference);
        if (!(loss < 0.2f && difference < 1e-4f)) {
            throw new IllegalStateException("the loss or the difference is too large");
        }
    }

    /** Trains a network to classify points as inside or outside a circle; returns the loss. */
    private static float train(int epochs) throws Exception {
        SequentialBlock block =
                new SequentialBlock()
                        .add(Linear.builder().setUnits(32).build())
                        .add(Activation::relu)
                        .add(Linear.builder().setUnits(2).build());
        DataParallelConfig config =
                new DataParallelConfig(Loss.softmaxCrossEntropyLoss()).optRanks(RANKS);
        config.optOptimizer(
                        Optimizer.adam().optLearningRateTracker(Tracker.fixed(0.01f)).build())
                .addTrainingListeners(new EvaluatorTrainingListener());
        Engine.getEngine(P2pEngine.NAME).setRandomSeed(1);
        try (Model model = Model.newInstance("circle", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 2));
                NDManager manager = trainer.getManager();
                NDArray x = manager.randomUniform(-1, 1, new Shape(2048, 2));
                NDArray y = x.square().sum(new int[] {1}).lt(0.6f).toType(DataType.FLOAT32, true);
                ArrayDataset dataset =
                        new ArrayDataset.Builder()
                                .setData(x)
                                .optLabels(y)
                                .setSampling(64, true)
                                .build();
                EasyTrain.fit(trainer, epochs, dataset, null);
                return trainer.getTrainingResult()
                        .getTrainEvaluation(trainer.getLoss().getName());
            }
        }
    }

    /**
     * All-gather + matmul in one fused call: each rank has half of the rows of A and half of the
     * columns of B. Returns the greatest difference from a matmul on one rank.
     */
    private static float multiply() {
        List<ProcessGroup> groups = ProcessGroups.local(RANKS);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray a = manager.randomNormal(new Shape(64, 128));
            NDArray b = manager.randomNormal(new Shape(128, 96));
            NDArray expected = a.matMul(b);
            List<Float> differences =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                int rank = group.rank();
                                try (NDManager own = NDManager.newBaseManager(group.device())) {
                                    NDArray rows = own.from(a.split(RANKS, 0).get(rank));
                                    NDArray columns = own.from(b.split(RANKS, 1).get(rank));
                                    NDArray product =
                                            FusedOps.allGatherMatmul(
                                                            rows, List.of(columns), 0, group)
                                                    .outputs()
                                                    .get(0);
                                    NDArray same = expected.split(RANKS, 1).get(rank);
                                    return product.sub(same).abs().max().getFloat();
                                }
                            });
            return Math.max(differences.get(0), differences.get(1));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
