/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.StackBatchifier;
import java.util.Arrays;
import org.djlx.collectives.engine.DataParallelConfig;
import org.djlx.nativeops.NoGradient;

/**
 * The time of a training step, by SGD in float32, of {@code layers} times (Linear width → hidden,
 * ReLU, Linear hidden → width): the forward and the backward pass, synchronising, and the update.
 */
final class TrainBench {

    /** Who trains. */
    enum Contender {
        /** DJL's engine on one device: nothing is synchronised. */
        ALONE,
        /** DJL's engine on all devices, which synchronises by way of the first. */
        DJL,
        /** The engine PyTorch-P2P on all devices. */
        P2P
    }

    /** The mean of the squares; DJL's multiplies by a number, which autograd may lose. */
    private static final class Squares extends Loss {

        Squares() {
            super("squares");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return predictions.head().sub(labels.head()).square().mean();
        }
    }

    /**
     * What is trained.
     *
     * @param rows of each rank in a batch
     */
    record Size(int layers, int width, int hidden, int rows) {}

    private static final int WARM_UP = 5;

    private TrainBench() {}

    /**
     * Measures steps one after the other.
     *
     * @param devices all devices; on the CPU there is one for all ranks
     * @return the median time of a step, in milliseconds
     */
    static double milliseconds(
            Contender contender, Size size, Device[] devices, int ranks, int steps)
            throws Exception {
        String engine = contender == Contender.P2P ? "PyTorch-P2P" : "PyTorch";
        try (Model model = Model.newInstance("train-bench", devices[0], engine)) {
            SequentialBlock block = new SequentialBlock();
            for (int i = 0; i < size.layers; i++) {
                block.add(Linear.builder().setUnits(size.hidden).build())
                        .add(Activation::relu)
                        .add(Linear.builder().setUnits(size.width).build());
            }
            model.setBlock(block);
            DataParallelConfig config = new DataParallelConfig(new Squares());
            if (!devices[0].isGpu()) {
                config.optRanks(contender == Contender.P2P ? ranks : 1);
            }
            boolean one = contender == Contender.ALONE;
            config.optDevices(one ? Arrays.copyOf(devices, 1) : devices);
            Tracker rate = Tracker.fixed(1e-3f);
            config.optOptimizer(Optimizer.sgd().setLearningRateTracker(rate).build());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, size.width));
                long rows = (long) size.rows * (one ? 1 : ranks);
                double[] times = new double[steps];
                for (int step = -WARM_UP; step < steps; step++) {
                    double time = step(trainer, rows, size.width);
                    if (step >= 0) {
                        times[step] = time;
                    }
                }
                Arrays.sort(times);
                return times[steps / 2];
            }
        }
    }

    /** Trains on a batch, and returns how long that took. */
    private static double step(Trainer trainer, long rows, int width) {
        try (NDManager manager = trainer.getManager().newSubManager(trainer.getDevices()[0])) {
            NDArray x = manager.randomNormal(new Shape(rows, width));
            x.sum().getFloat(); // It is there.
            NDManager own = manager.newSubManager();
            StackBatchifier stack = new StackBatchifier();
            NDList data = new NDList(x);
            NDList labels = new NDList(x.duplicate());
            long begin = System.nanoTime();
            Batch batch = new Batch(own, data, labels, (int) rows, stack, stack, 0, 0);
            try (GradientCollector collector = trainer.newGradientCollector()) {
                for (Batch part : batch.split(trainer.getDevices(), false)) {
                    NDList predictions = trainer.forward(part.getData(), part.getLabels());
                    collector.backward(trainer.getLoss().evaluate(part.getLabels(), predictions));
                }
            }
            trainer.step();
            awaitAll(trainer);
            return (System.nanoTime() - begin) / 1e6;
        }
    }

    /** Waits for the first device's parameters; the others have as much to do at the same time. */
    private static void awaitAll(Trainer trainer) {
        NoGradient.run(
                () ->
                        trainer.getModel().getBlock().getParameters().values().stream()
                                .map(parameter -> parameter.getArray().flatten().get("0:1"))
                                .forEach(
                                        element -> {
                                            element.getFloat();
                                            element.close();
                                        }));
    }
}
