/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.Arrays;
import org.djlx.collectives.engine.Training.Outcome;

/** One of several processes that train a model; it knows of them only by its dataset's sampler. */
public final class TrainingMain {

    private TrainingMain() {}

    /**
     * Trains and prints the losses and the parameters.
     *
     * @param args the optimizer, where to save the model, and the backend if it is not the default
     */
    public static void main(String[] args) throws Exception {
        int rank = Integer.parseInt(System.getenv("RANK"));
        int worldSize = Integer.parseInt(System.getenv("WORLD_SIZE"));
        System.setProperty("org.djlx.gradientReduction", "mean");
        if (args.length > 2) {
            System.setProperty("org.djlx.backend", args[2]);
        }
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss())
                        .optOptimizer(Training.optimizer(args[0]))
                        .addTrainingListeners(saver(Path.of(args[1]).resolve("rank" + rank)));
        Outcome outcome =
                Training.fit(
                        P2pEngine.NAME,
                        config,
                        Training.block(),
                        32,
                        DistributedSampler.builder().setBatchSize(8 / worldSize).optSeed(3).build(),
                        3,
                        5 + rank,
                        trainer -> {});
        outcome.losses().forEach(loss -> System.out.println("loss " + loss));
        for (float[] parameter : outcome.parameters()) {
            System.out.println("parameter " + Arrays.toString(parameter));
        }
    }

    private static TrainingListenerAdapter saver(Path directory) {
        return new TrainingListenerAdapter() {
            @Override
            public void onTrainingEnd(Trainer trainer) {
                try {
                    trainer.getModel().save(directory, "classifier");
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            }
        };
    }
}
