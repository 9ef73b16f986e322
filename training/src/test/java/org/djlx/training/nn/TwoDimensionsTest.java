// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
import java.util.function.DoubleConsumer;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.GradientReduction;
import org.djlx.training.Training;
import org.djlx.training.Training.Outcome;
import org.djlx.training.data.DistributedSampler;
import org.djlx.training.strategy.ShardingStrategy;
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
    private static final float LOSS_TOLERANCE = 1e-6f;
    private static final int RANKS = 4;
    private static final int BATCH = 8;
    private static final int ITEMS = 32;

    @ParameterizedTest
    @CsvSource({
        "sgd, 2, NO_SHARD",
        "adam, 2, NO_SHARD",
        "adam, 1, NO_SHARD",
        "adam, 4, NO_SHARD",
        "adam, 2, FULL_SHARD",
        "sgd, 1, FULL_SHARD"
    })
    @Timeout(120)
    void trainAsOneDevice(
            String optimizer, int parallel, ShardingStrategy sharding, @TempDir Path directory)
            throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local(RANKS);
        try {
            List<Outcome> outcomes =
                    ProcessGroups.run(
                            groups,
                            group ->
                                    run(
                                            group,
                                            optimizer,
                                            parallel,
                                            sharding,
                                            norm -> {},
                                            directory));
            assertAsOneDevice(optimizer, outcomes, directory);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Each element counts once, whatever divides it. */
    @Test
    @Timeout(120)
    void normsDoNotDependOnSharding(@TempDir Path directory) {
        List<List<Double>> norms = new ArrayList<>();
        List<ProcessGroup> groups = ProcessGroups.local(RANKS);
        try {
            for (ShardingStrategy sharding :
                    List.of(ShardingStrategy.NO_SHARD, ShardingStrategy.FULL_SHARD)) {
                norms.addAll(
                        ProcessGroups.run(
                                groups,
                                group -> {
                                    List<Double> own = new ArrayList<>();
                                    run(group, "adam", 2, sharding, own::add, directory);
                                    return own;
                                }));
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        List<Double> expected = norms.get(0);
        assertTrue(expected.size() > 1 && expected.get(0) > 0, expected.toString());
        for (List<Double> own : norms) {
            for (int step = 0; step < expected.size(); step++) {
                assertEquals(expected.get(step), own.get(step), 1e-5 * expected.get(step));
            }
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
            assertEquals(expected.losses().get(step), mean, LOSS_TOLERANCE, "batch " + step);
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
        return run(
                group, optimizer, tensorParallel, ShardingStrategy.NO_SHARD, norm -> {}, directory);
    }

    private static Outcome run(
            ProcessGroup group,
            String optimizer,
            int tensorParallel,
            ShardingStrategy sharding,
            DoubleConsumer norms,
            Path directory)
            throws Exception {
        int rank = group.rank();
        try (ProcessGroup tensor = group.split(rank / tensorParallel, rank);
                ProcessGroup data = group.split(rank % tensorParallel, rank)) {
            return run(optimizer, sharding, tensor, data, norms, directory);
        }
    }

    private static Outcome run(
            String optimizer,
            ShardingStrategy sharding,
            ProcessGroup tensor,
            ProcessGroup data,
            DoubleConsumer norms,
            Path directory)
            throws Exception {
        int batch = BATCH / data.worldSize();
        DataParallelConfig config =
                new DataParallelConfig(Training.loss())
                        .optProcessGroup(data)
                        .optShardingStrategy(sharding)
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
                    public void onTrainingBatch(Trainer trainer, BatchData batch) {
                        norms.accept(((DataParallelTrainer) trainer).clipGradNorm(1e9));
                    }

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
