// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.Training;
import org.djlx.training.Training.Outcome;
import org.djlx.training.data.DistributedSampler;
import org.djlx.training.strategy.ShardingStrategy;

/** One of several processes that go on from a checkpoint if there is one. */
public final class CheckpointMain {

    private CheckpointMain() {}

    /**
     * Trains for three epochs of four batches, and prints the losses and the parameters.
     *
     * @param args the optimizer, where checkpoints are, at which batch rank 1 dies (0 for none),
     *     and optionally a sharding strategy, with which rank 1 is sent SIGTERM instead, once
     */
    public static void main(String[] args) throws Exception {
        int rank = Integer.parseInt(System.getenv("RANK"));
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optOptimizer(Training.optimizer(args[0]));
        boolean sharded = args.length > 3;
        CheckpointManager checkpoints =
                CheckpointManager.builder()
                        .setDirectory(Path.of(args[1]))
                        .optEvery(sharded ? 100 : 2)
                        .optAsync(sharded)
                        .optSaveOnSigterm(sharded)
                        .build();
        int last = rank == 1 ? Integer.parseInt(args[2]) : 0;
        if (sharded) {
            config.optShardingStrategy(ShardingStrategy.valueOf(args[3]));
            boolean again = !"0".equals(System.getenv("TORCHELASTIC_RESTART_COUNT"));
            config.addTrainingListeners(terminateAt(again ? 0 : last), checkpoints);
        } else {
            config.addTrainingListeners(checkpoints, dieAt(last));
        }
        DistributedSampler sampler =
                DistributedSampler.builder().setBatchSize(4).optSeed(3).build();
        Outcome outcome =
                Training.fit(
                        P2pEngine.NAME,
                        config,
                        Training.block(),
                        32,
                        sampler,
                        5 + rank,
                        trainer -> {
                            TrainingProgress done = checkpoints.restore(trainer);
                            System.out.println("restored " + done);
                            sampler.setPosition(
                                    done.epoch(), done.batch() * sampler.itemsPerBatch());
                            return 3 - (int) done.epoch();
                        });
        outcome.losses().forEach(loss -> System.out.println("loss " + loss));
        for (float[] parameter : outcome.parameters()) {
            System.out.println("parameter " + Arrays.toString(parameter));
        }
    }

    /** Sends this process SIGTERM, and waits until the JVM has seen it. */
    private static TrainingListenerAdapter terminateAt(int batch) {
        return new TrainingListenerAdapter() {
            private int seen;

            @Override
            public void onTrainingBatch(Trainer trainer, BatchData batchData) {
                if (++seen != batch) {
                    return;
                }
                try {
                    String pid = Long.toString(ProcessHandle.current().pid());
                    new ProcessBuilder("kill", "-TERM", pid).start().waitFor();
                    while (!Termination.isRequested()) {
                        Thread.sleep(1);
                    }
                } catch (IOException | InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            }
        };
    }

    private static TrainingListenerAdapter dieAt(int batch) {
        return new TrainingListenerAdapter() {
            private int seen;

            @Override
            public void onTrainingBatch(Trainer trainer, BatchData batchData) {
                if (++seen == batch) {
                    Runtime.getRuntime().halt(7);
                }
            }
        };
    }
}
