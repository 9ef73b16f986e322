// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.Arrays;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.Training.Outcome;
import org.djlx.training.data.DistributedSampler;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.FullyShardPolicy;

/** One of several processes that train a model; it knows of them only by its dataset's sampler. */
public final class TrainingMain {

    private TrainingMain() {}

    /** Instead of a backend: with DJL's own engine, and a listener that makes gradients one. */
    static final String LISTENER = "listener";

    /**
     * Trains and prints the losses and the parameters.
     *
     * @param args the optimizer, where to save the model, and the backend if it is not the default,
     *     or {@link #LISTENER}, which saves nothing; and for hybrid sharding a fourth argument:
     *     each rank holds all parameters
     */
    public static void main(String[] args) throws Exception {
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss())
                        .optOptimizer(Training.optimizer(args[0]));
        Outcome outcome =
                args.length > 2 && args[2].equals(LISTENER)
                        ? fitWithListener(config, "shm")
                        : fit(config, args);
        outcome.losses().forEach(loss -> System.out.println("loss " + loss));
        for (float[] parameter : outcome.parameters()) {
            System.out.println("parameter " + Arrays.toString(parameter));
        }
    }

    private static Outcome fit(TrainingConfig config, String[] args) throws Exception {
        int rank = Integer.parseInt(System.getenv("RANK"));
        int worldSize = Integer.parseInt(System.getenv("WORLD_SIZE"));
        System.setProperty("org.djlx.gradientReduction", "mean");
        if (args.length > 2) {
            System.setProperty("org.djlx.backend", args[2]);
        }
        config.getTrainingListeners().add(saver(Path.of(args[1]).resolve("rank" + rank)));
        SequentialBlock block = Training.block();
        if (args.length > 3) {
            System.setProperty("org.djlx.shardingStrategy", "FULL_SHARD");
            FullyShardPolicy policy = new FullyShardPolicy().optShardRanks(1);
            block =
                    new SequentialBlock()
                            .add(FullyShard.apply(block, each -> each instanceof Linear, policy));
        }
        return Training.fit(
                P2pEngine.NAME,
                config,
                block,
                32,
                DistributedSampler.builder().setBatchSize(8 / worldSize).optSeed(3).build(),
                3,
                5 + rank,
                trainer -> {});
    }

    static Outcome fitWithListener(TrainingConfig config, String backend) throws Exception {
        try (ProcessGroup group = ProcessGroups.init(backend)) {
            config.getTrainingListeners()
                    .add(new GradientSynchronizer(group, GradientReduction.MEAN));
            SequentialBlock block = Training.block();
            return Training.fit(
                    "PyTorch",
                    config,
                    block,
                    32,
                    DistributedSampler.builder()
                            .setBatchSize(8 / group.worldSize())
                            .optSeed(3)
                            .optGroup(group)
                            .build(),
                    3,
                    5 + group.rank(),
                    trainer -> GradientSynchronizer.broadcastParameters(block, group));
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
