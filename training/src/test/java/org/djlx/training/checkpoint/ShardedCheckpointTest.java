// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.GradientCollector;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.host.AtomicFile;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.Training;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.FullyShardPolicy;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Checkpoints of which each rank writes its part, and jobs that go on with other ranks. */
@Timeout(120)
class ShardedCheckpointTest {

    private static final int FEATURES = 5;
    private static final int HALF = 3; // steps before the checkpoint, and after
    private static final double TOLERANCE = 1e-6;

    @TempDir private Path directory;

    private interface Program {
        void run(DataParallelTrainer trainer, int rank) throws Exception;
    }

    private static Block block(int seed) {
        SequentialBlock block = new SequentialBlock();
        block.add(Linear.builder().setUnits(7).optBias(false).build());
        block.add(BatchNorm.builder().build()); // has statistics
        block.add(Activation::tanh);
        block.add(Linear.builder().setUnits(3).build());
        Random random = new Random(seed);
        block.setInitializer(
                (manager, shape, type) -> values(manager, random, shape), Parameter.Type.WEIGHT);
        return block;
    }

    private static NDArray values(NDManager manager, Random random, Shape shape) {
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return manager.create(values, shape);
    }

    /** Runs a trainer on each of several ranks, and returns the parameters at its end. */
    private static List<float[]> job(
            ShardingStrategy strategy, int ranks, int seed, Program program) {
        return job(strategy, ranks, () -> block(seed), program);
    }

    private static List<float[]> job(
            ShardingStrategy strategy, int ranks, Supplier<Block> block, Program program) {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            return ProcessGroups.run(
                            groups,
                            group -> {
                                DataParallelConfig config =
                                        new DataParallelConfig(Training.loss())
                                                .optShardingStrategy(strategy)
                                                .optSyncBatchNorm(false)
                                                .optProcessGroup(group);
                                return rank(config, group.rank(), block.get(), program);
                            })
                    .get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static List<float[]> rank(
            DataParallelConfig config, int rank, Block block, Program program) throws Exception {
        config.optOptimizer(Training.optimizer("adam"));
        try (Model model = Model.newInstance("sharded", P2pEngine.NAME)) {
            model.setBlock(block);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, FEATURES));
                program.run(trainer, rank);
            }
            List<float[]> parameters = new ArrayList<>();
            for (Parameter parameter : model.getBlock().getParameters().values()) {
                parameters.add(NoGradient.get(() -> parameter.getArray().toFloatArray()));
            }
            return parameters;
        }
    }

    /** Trains on the same batch on all ranks, so that their number does not matter. */
    private static void train(DataParallelTrainer trainer, int from, int to) {
        for (int step = from; step < to; step++) {
            try (NDManager manager = trainer.getManager().newSubManager();
                    GradientCollector collector = trainer.newGradientCollector()) {
                NDArray x = values(manager, new Random(step), new Shape(4, FEATURES));
                collector.backward(trainer.forward(new NDList(x)).head().square().mean());
            }
            trainer.step();
        }
    }

    private static void assertNear(List<float[]> expected, List<float[]> actual) {
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), (float) TOLERANCE, "parameter " + i);
        }
    }

    private CheckpointManager manager(boolean async) {
        return CheckpointManager.builder()
                .setDirectory(directory)
                .optKeep(1)
                .optAsync(async)
                .build();
    }

    private List<Path> files() throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.sorted().toList();
        }
    }

    private void save(ShardingStrategy strategy, int ranks, boolean async) {
        save(strategy, ranks, () -> block(5), async);
    }

    private void save(ShardingStrategy strategy, int ranks, Supplier<Block> block, boolean async) {
        job(
                strategy,
                ranks,
                block,
                (trainer, rank) -> {
                    CheckpointManager checkpoints = manager(async);
                    train(trainer, 0, HALF);
                    checkpoints.save(trainer, new TrainingProgress(HALF, 0, HALF));
                    train(trainer, HALF, HALF + 1); // changes what is being written
                    checkpoints.await(trainer);
                });
    }

    @ParameterizedTest
    @CsvSource({
        "FULL_SHARD, 2, FULL_SHARD, 2, false",
        "FULL_SHARD, 2, FULL_SHARD, 3, true",
        "FULL_SHARD, 4, FULL_SHARD, 2, false",
        "FULL_SHARD, 1, FULL_SHARD, 2, false",
        "NO_SHARD, 2, FULL_SHARD, 1, false",
        "FULL_SHARD, 3, NO_SHARD, 1, true",
        "NO_SHARD, 2, FULL_SHARD, 3, true",
        "SHARD_OPTIMIZER, 2, FULL_SHARD, 3, false",
        "FULL_SHARD, 2, SHARD_OPTIMIZER, 3, true",
        "SHARD_OPTIMIZER, 3, SHARD_OPTIMIZER, 2, true"
    })
    void jobResumesWithOtherRanks(
            ShardingStrategy before, int ranks, ShardingStrategy after, int others, boolean async)
            throws Exception {
        List<float[]> expected =
                job(
                        ShardingStrategy.NO_SHARD,
                        1,
                        5,
                        (trainer, rank) -> train(trainer, 0, 2 * HALF));
        save(before, ranks, async);
        assertEquals(before == ShardingStrategy.NO_SHARD ? 1 : ranks, files().size());
        List<float[]> actual =
                job(
                        after,
                        others,
                        99, // other parameters than those that come from the files
                        (trainer, rank) -> {
                            TrainingProgress done = manager(async).restore(trainer);
                            assertEquals(new TrainingProgress(HALF, 0, HALF), done);
                            train(trainer, HALF, 2 * HALF);
                        });
        assertNear(expected, actual);
    }

    /** Of ranks with the same part of a block, the first writes it and all read it. */
    @Test
    void hybridRanksWriteEachPartOnce() throws Exception {
        Supplier<Block> hybrid =
                () ->
                        FullyShard.apply(
                                block(7),
                                each -> each instanceof Linear,
                                new FullyShardPolicy().optShardRanks(2));
        Program whole = (trainer, rank) -> train(trainer, 0, 2 * HALF);
        List<float[]> expected = job(ShardingStrategy.NO_SHARD, 1, 7, whole);
        save(ShardingStrategy.FULL_SHARD, 4, hybrid, false);
        long elements = 0;
        for (Path file : files()) {
            try (CheckpointFile part = CheckpointFile.open(file)) {
                for (var stored : part.tensors().values()) {
                    elements += stored.spec().shape().size();
                }
            }
        }
        assertEquals(3 * 73 + 14, elements); // as eachRankWritesItsPart
        Program rest =
                (trainer, rank) -> {
                    manager(false).restore(trainer);
                    train(trainer, HALF, 2 * HALF);
                };
        assertNear(expected, job(ShardingStrategy.FULL_SHARD, 4, hybrid, rest));
        assertNear(expected, job(ShardingStrategy.FULL_SHARD, 3, 99, rest));
    }

    /** Each rank writes about its share of parameters and optimizer state. */
    @Test
    void eachRankWritesItsPart() throws Exception {
        save(ShardingStrategy.FULL_SHARD, 2, false);
        for (Path file : files()) {
            try (CheckpointFile part = CheckpointFile.open(file)) {
                long elements =
                        part.tensors().values().stream()
                                .mapToLong(stored -> stored.spec().shape().size())
                                .sum();
                // 5 * 7 + 2 * 7 + (7 + 1) 3 parameters, Adam's 2 means; 2 * 7 statistics
                assertTrue(
                        elements >= 3 * 73 / 2 - 3 && elements <= 3 * 73 / 2 + 14 + 3,
                        "" + elements);
            }
        }
    }

    /** The handler of SIGTERM before training is that after it; a manager alone changes nothing. */
    @Test
    void sigtermIsHandledWhileTheTrainerIsOpen() throws Exception {
        Object original = Termination.handle(null);
        try {
            Object before = Termination.handle(original);
            Termination.handle(before);
            DataParallelConfig config = new DataParallelConfig(Training.loss());
            CheckpointManager checkpoints =
                    CheckpointManager.builder()
                            .setDirectory(directory)
                            .optSaveOnSigterm(true)
                            .build();
            config.addTrainingListeners(checkpoints);
            List<Object> handlers = new ArrayList<>(List.of(handler()));
            rank(config, 0, block(5), (trainer, rank) -> handlers.add(handler()));
            handlers.add(handler());
            assertSame(before, handlers.get(0));
            assertNotSame(before, handlers.get(1));
            assertSame(before, handlers.get(2));
        } finally {
            Termination.handle(original);
        }
    }

    private static Object handler() {
        Object now = Termination.handle(null);
        Termination.handle(now);
        return now;
    }

    @Test
    void ranksOfOneJvmSaveAndRestore() throws Exception {
        DataParallelConfig config = new DataParallelConfig(Training.loss()).optRanks(2);
        config.optShardingStrategy(ShardingStrategy.FULL_SHARD);
        List<float[]> saved =
                rank(
                        config,
                        0,
                        block(5),
                        (trainer, rank) -> {
                            train(trainer, 0, HALF);
                            manager(true).save(trainer, new TrainingProgress(HALF, 0, HALF));
                        });
        // The daemon may still write: a manager of the same job waits by await().
        while (files().stream().noneMatch(file -> file.endsWith("checkpoint-3.safetensors"))) {
            Thread.sleep(1);
        }
        List<float[]> restored =
                job(
                        ShardingStrategy.NO_SHARD,
                        1,
                        99,
                        (trainer, rank) -> manager(false).restore(trainer));
        assertNear(saved, restored);
    }

    /** A checkpoint whose part is missing or damaged is refused on all ranks. */
    @ParameterizedTest
    @CsvSource({"true", "false"})
    void restoreRejectsMissingOrDamagedParts(boolean missing) throws Exception {
        save(ShardingStrategy.FULL_SHARD, 2, false);
        Path part = files().get(0);
        assertTrue(part.getFileName().toString().contains("part-1"));
        if (missing) {
            Files.delete(part);
        } else {
            byte[] bytes = Files.readAllBytes(part);
            bytes[bytes.length - 1]++;
            Files.write(part, bytes);
        }
        job(
                ShardingStrategy.FULL_SHARD,
                3,
                99,
                (trainer, rank) -> {
                    IOException e =
                            assertThrows(IOException.class, () -> manager(false).restore(trainer));
                    assertTrue(e.getMessage().contains("previous checkpoint"), e.getMessage());
                });
    }

    /** Parts of a job that was killed before they were named are deleted, as are old ones. */
    @Test
    void partsWithoutACheckpointAreDeleted() throws Exception {
        Files.write(directory.resolve("checkpoint-2.part-1-abc.safetensors"), new byte[9]);
        String incomplete = ".checkpoint-2.part-1-abc.safetensors.incomplete";
        Files.write(directory.resolve(incomplete), new byte[9]);
        job(
                ShardingStrategy.FULL_SHARD,
                2,
                5,
                (trainer, rank) -> {
                    CheckpointManager checkpoints = manager(true);
                    for (int step = 0; step < 3; step++) {
                        train(trainer, step, step + 1);
                        checkpoints.save(trainer, new TrainingProgress(step + 1, 0, step + 1));
                    }
                    checkpoints.await(trainer);
                });
        assertEquals(2, files().size());
        assertTrue(files().stream().allMatch(file -> file.toString().contains("checkpoint-3.")));
    }

    /** Returns the manager of a rank; the ranks' directories are not the same. */
    private CheckpointManager apart(int rank, Path other, boolean async) {
        return CheckpointManager.builder()
                .setDirectory(rank == 0 ? directory : other)
                .optAsync(async)
                .build();
    }

    /** The ranks' directories are not the same: the checkpoint is not complete on any rank. */
    @ParameterizedTest
    @CsvSource({"true", "false"})
    void saveFailsWithoutASharedDirectory(boolean async, @TempDir Path other) throws Exception {
        Duration before = CheckpointProtocol.patience;
        CheckpointProtocol.patience = Duration.ofMillis(100);
        try {
            job(
                    ShardingStrategy.FULL_SHARD,
                    2,
                    5,
                    (trainer, rank) -> {
                        CheckpointManager checkpoints = apart(rank, other, async);
                        IOException e =
                                assertThrows(
                                        IOException.class,
                                        () -> {
                                            checkpoints.save(trainer, TrainingProgress.START);
                                            checkpoints.await(trainer);
                                        });
                        assertTrue(e.getMessage().contains("shared directory"), e.getMessage());
                    });
        } finally {
            CheckpointProtocol.patience = before;
        }
        assertEquals(List.of(), files());
    }

    /**
     * DJL ends a job without an agreement of ranks: the first one waits for the other's part while
     * that is being written, or, if its process has died, for a while.
     */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    @Timeout(60)
    void endOfTrainingWaitsForPartsBeingWritten(boolean written, @TempDir Path other)
            throws Exception {
        Duration before = CheckpointProtocol.patience;
        CheckpointProtocol.patience = Duration.ofSeconds(1);
        try {
            job(
                    ShardingStrategy.FULL_SHARD,
                    2,
                    5,
                    (trainer, rank) -> {
                        CheckpointManager checkpoints = apart(rank, other, true);
                        checkpoints.save(trainer, TrainingProgress.START);
                        if (rank == 1) {
                            checkpoints.onTrainingEnd(trainer);
                            if (written) {
                                writeSlowly(other, Duration.ofSeconds(4));
                            }
                        } else if (written) {
                            checkpoints.onTrainingEnd(trainer);
                        } else {
                            String message =
                                    assertThrows(
                                                    UncheckedIOException.class,
                                                    () -> checkpoints.onTrainingEnd(trainer))
                                            .getMessage();
                            assertTrue(message.contains("is not being written"), message);
                        }
                    });
        } finally {
            CheckpointProtocol.patience = before;
        }
        assertEquals(written ? 2 : 0, files().size());
    }

    /** Writes a folder's file into the other folder, and flushes it for a while. */
    private void writeSlowly(Path from, Duration flush) throws Exception {
        try (Stream<Path> files = Files.list(from)) {
            Path part = files.findFirst().orElseThrow();
            try (AtomicFile file = AtomicFile.create(directory.resolve(part.getFileName()))) {
                file.write(ByteBuffer.wrap(Files.readAllBytes(part)));
                Thread.sleep(flush.toMillis());
                file.commit();
            }
        }
    }
}
