// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.GradientReduction;
import org.djlx.training.Training;
import org.djlx.training.Training.Outcome;
import org.djlx.training.data.DistributedSampler;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Four ranks: two share a model, two share batches. They train like one device with the undivided
 * model and undivided batches.
 */
class TwoDimensionsTest {

    private static final float TOLERANCE = 2e-5f;
    private static final int RANKS = 4;
    private static final int BATCH = 8;
    private static final int ITEMS = 32;

    @ParameterizedTest
    @CsvSource({"sgd, 2", "adam, 2", "adam, 1", "adam, 4"})
    @Timeout(120)
    void trainAsOneDevice(String optimizer, int tensorParallel, @TempDir Path directory)
            throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local(RANKS);
        try {
            List<Outcome> outcomes =
                    ProcessGroups.run(
                            groups, group -> run(group, optimizer, tensorParallel, directory));
            assertAsOneDevice(optimizer, outcomes, directory);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    @Timeout(200)
    @Tag("slow")
    void processesTrainAsOneDevice(@TempDir Path directory) throws Exception {
        List<Outcome> outcomes = new ArrayList<>();
        try (RankProcesses processes =
                new RankProcesses(
                        RANKS, TwoDimensionsMain.class, "adam", "2", directory.toString())) {
            processes.awaitSuccess();
            for (int rank = 0; rank < RANKS; rank++) {
                outcomes.add(TwoDimensionsMain.parse(processes.output(rank)));
            }
        }
        assertAsOneDevice("adam", outcomes, directory);
    }

    private static void assertAsOneDevice(String optimizer, List<Outcome> outcomes, Path directory)
            throws Exception {
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss())
                        .optOptimizer(Training.optimizer(optimizer));
        DistributedSampler whole = DistributedSampler.builder().setBatchSize(BATCH).build();
        SequentialBlock undivided =
                new SequentialBlock()
                        .add(Linear.builder().setUnits(8).build())
                        .add(Activation::tanh)
                        .add(Linear.builder().setUnits(Training.CLASSES).build());
        Outcome expected =
                Training.fit("PyTorch", config, undivided, ITEMS, whole, 3, 5, trainer -> {});
        for (int step = 0; step < expected.losses().size(); step++) {
            double mean = 0;
            for (Outcome own : outcomes) {
                mean += own.losses().get(step) / RANKS;
            }
            assertEquals(expected.losses().get(step), mean, TOLERANCE, "batch " + step);
        }
        for (Outcome own : outcomes) {
            assertEquals(expected.losses().size(), own.losses().size());
            assertEquals(expected.parameters().size(), own.parameters().size());
            for (int i = 0; i < own.parameters().size(); i++) {
                assertArrayEquals(
                        expected.parameters().get(i),
                        own.parameters().get(i),
                        TOLERANCE,
                        "parameter " + i);
            }
        }
        try (Stream<Path> files = Files.list(directory)) {
            assertEquals(
                    List.of(directory.resolve("classifier-0000.params")),
                    files.toList(),
                    "one rank saves");
        }
    }

    /** Trains on one rank, saves, and returns its losses and the full parameters. */
    static Outcome run(ProcessGroup group, String optimizer, int tensorParallel, Path directory)
            throws Exception {
        int rank = group.rank();
        try (ProcessGroup tensor = group.split(rank / tensorParallel, rank);
                ProcessGroup data = group.split(rank % tensorParallel, rank)) {
            return run(optimizer, tensor, data, directory);
        }
    }

    private static Outcome run(
            String optimizer, ProcessGroup tensor, ProcessGroup data, Path directory)
            throws Exception {
        int batch = BATCH / data.worldSize();
        DataParallelConfig config =
                new DataParallelConfig(Training.loss())
                        .optProcessGroup(data)
                        .optGradientReduction(GradientReduction.MEAN)
                        .optBucketBytes(64);
        config.optOptimizer(Training.optimizer(optimizer));
        ColumnParallelLinear in =
                ColumnParallelLinear.builder().setGroup(tensor).setUnits(8).build();
        RowParallelLinear out =
                RowParallelLinear.builder().setGroup(tensor).setUnits(Training.CLASSES).build();
        SequentialBlock block = new SequentialBlock().add(in).add(Activation::tanh).add(out);
        DistributedSampler sampler =
                DistributedSampler.builder().setBatchSize(batch).optGroup(data).build();
        // Replicas start with the parameters of the first replica.
        int seed = 5 + data.rank() + 10 * tensor.rank();
        List<float[]> full = new ArrayList<>();
        config.addTrainingListeners(
                new TrainingListenerAdapter() {
                    @Override
                    public void onTrainingEnd(Trainer trainer) {
                        for (ShardedBlock part : List.of(in, out)) {
                            full.add(part.full("weight", trainer.getManager()).toFloatArray());
                            full.add(part.full("bias", trainer.getManager()).toFloatArray());
                        }
                        try {
                            trainer.getModel().save(directory, "classifier");
                        } catch (IOException e) {
                            throw new UncheckedIOException(e);
                        }
                    }
                });
        Outcome own =
                Training.fit(P2pEngine.NAME, config, block, ITEMS, sampler, 3, seed, trainer -> {});
        return new Outcome(own.losses(), full);
    }
}
