// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import java.util.List;
import java.util.Random;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Steps of unequal batches, against one device that has all rows of a step in one batch. */
class LossWeightTest {

    private static final int STEPS = 4;
    private static final int IGNORED = -1;
    private static final float TOLERANCE = 1e-5f;
    // Rows of each pass of each process in a step.
    private static final int[][] ROWS = {{1, 4}, {7, 2}, {3, 3}};

    private static DataParallelConfig config(LossWeight weight) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        return weight == null ? config : config.optLossWeight(weight);
    }

    private static float[][] train(
            String engine, DataParallelConfig config, Consumer<Program> body) {
        config.optDevices(new Device[] {Device.cpu()});
        config.optOptimizer(Training.optimizer("momentum"));
        SequentialBlock block = Training.block();
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("weighted", engine)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                body.accept(new Program(trainer));
            }
            return NoGradient.get(
                    () ->
                            block.getParameters().values().stream()
                                    .map(own -> own.getArray().toFloatArray())
                                    .toArray(float[][]::new));
        }
    }

    /** A program that either engine runs. */
    private record Program(Trainer trainer) {

        /** A pass on rows [from, to) of a step's batch. */
        void pass(int step, int from, int to, boolean tokens, boolean isSum) {
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDManager manager = trainer.getManager();
                NDArray x = data(manager, step).get(from + ":" + to);
                NDArray labels = labels(manager, step).get(from + ":" + to);
                NDArray y = trainer.forward(new NDList(x), new NDList(labels)).head();
                NDArray losses = y.logSoftmax(-1).square().sum(new int[] {1});
                if (tokens) {
                    losses = losses.mul(labels.neq(IGNORED).toType(DataType.FLOAT32, false));
                }
                NDArray loss = losses.sum();
                float count = tokens ? Math.max(1, count(step, from, to)) : to - from;
                collector.backward(isSum ? loss : loss.div(count));
            }
        }

        void step() {
            trainer.step();
        }
    }

    private static final int ALL = 20; // rows of a step

    private static NDArray data(NDManager manager, int step) {
        Random random = new Random(step);
        float[] values = new float[ALL * Training.FEATURES];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return manager.create(values, new Shape(ALL, Training.FEATURES));
    }

    private static long[] labelsOf(int step) {
        return new Random(99 + step).longs(ALL, IGNORED, 2).toArray();
    }

    private static NDArray labels(NDManager manager, int step) {
        return manager.create(labelsOf(step));
    }

    private static int count(int step, int from, int to) {
        int count = 0;
        for (int row = from; row < to; row++) {
            count += labelsOf(step)[row] == IGNORED ? 0 : 1;
        }
        return count;
    }

    /** All passes of some processes, in the order of their rows. */
    private static void passes(Program trainer, int step, int rank, boolean tokens, boolean isSum) {
        int row = 0;
        for (int process = 0; process < ROWS.length; process++) {
            for (int rows : ROWS[process]) {
                if (process == rank || rank < 0) {
                    trainer.pass(step, row, row + rows, tokens, isSum);
                }
                row += rows;
            }
        }
    }

    private static float[][] reference(boolean tokens) {
        return train(
                "PyTorch",
                config(null),
                trainer -> {
                    for (int step = 0; step < STEPS; step++) {
                        trainer.pass(step, 0, ALL, tokens, false);
                        trainer.step();
                    }
                });
    }

    private static void assertSame(float[][] expected, float[][] actual) {
        for (int i = 0; i < expected.length; i++) {
            assertArrayEquals(expected[i], actual[i], TOLERANCE, "parameter " + i);
        }
    }

    private static List<float[][]> onThree(ProcessGroups.RankBody<float[][]> body) {
        List<ProcessGroup> groups = ProcessGroups.local(ROWS.length);
        try {
            return ProcessGroups.run(groups, body);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "NO_SHARD, false, false, false",
        "NO_SHARD, true, true, true",
        "NO_SHARD, true, false, false",
        "SHARD_OPTIMIZER, false, false, true",
        "FULL_SHARD, false, false, false",
        "FULL_SHARD, true, true, true"
    })
    void processesWithUnequalBatchesEqualOneDevice(
            ShardingStrategy sharding, boolean tokens, boolean isSum, boolean scaled) {
        LossWeight weight = tokens ? LossWeight.tokens(IGNORED) : LossWeight.ROWS;
        List<float[][]> all =
                onThree(
                        group -> {
                            DataParallelConfig config =
                                    config(weight)
                                            .optProcessGroup(group)
                                            .optShardingStrategy(sharding);
                            if (isSum) {
                                config.optGradientReduction(GradientReduction.SUM);
                            }
                            if (scaled) {
                                config.optGradScaler(new GradScaler());
                            }
                            return train(
                                    P2pEngine.NAME,
                                    config,
                                    trainer -> {
                                        for (int step = 0; step < STEPS; step++) {
                                            passes(trainer, step, group.rank(), tokens, isSum);
                                            trainer.step();
                                        }
                                    });
                        });
        float[][] expected = reference(tokens);
        all.forEach(actual -> assertSame(expected, actual));
    }

    @ParameterizedTest
    @CsvSource({"1, NO_SHARD", "2, NO_SHARD", "3, SHARD_OPTIMIZER", "2, FULL_SHARD"})
    @SuppressWarnings("try") // The collection of gradients is open, and not used.
    void accumulationOfUnequalBatchesEqualsOneBatch(int ranks, ShardingStrategy sharding) {
        float[][] actual =
                train(
                        P2pEngine.NAME,
                        config(LossWeight.ROWS).optRanks(ranks).optShardingStrategy(sharding),
                        trainer -> {
                            DataParallelTrainer own = (DataParallelTrainer) trainer.trainer();
                            for (int step = 0; step < STEPS; step++) {
                                try (DataParallelTrainer.NoSync none = own.noSync()) {
                                    passes(trainer, step, -1, false, false);
                                }
                                own.clipGradNorm(1e6);
                                trainer.step();
                            }
                        });
        assertSame(reference(false), actual);
    }

    /** The third process has no batch after the first step, so the step's rows are the others'. */
    @ParameterizedTest
    @EnumSource(ShardingStrategy.class)
    void joinedProcessCountsNoItems(ShardingStrategy sharding) {
        int others = ALL - ROWS[2][0] - ROWS[2][1];
        float[][] expected =
                train(
                        "PyTorch",
                        config(null),
                        trainer -> {
                            for (int step = 0; step < STEPS; step++) {
                                trainer.pass(step, 0, step == 0 ? ALL : others, false, false);
                                trainer.step();
                            }
                        });
        List<float[][]> all =
                onThree(
                        group ->
                                train(
                                        P2pEngine.NAME,
                                        config(LossWeight.ROWS)
                                                .optProcessGroup(group)
                                                .optJoin(true)
                                                .optShardingStrategy(sharding),
                                        trainer -> {
                                            int steps = group.rank() == 2 ? 1 : STEPS;
                                            for (int step = 0; step < steps; step++) {
                                                passes(trainer, step, group.rank(), false, false);
                                                trainer.step();
                                            }
                                            ((DataParallelTrainer) trainer.trainer()).join();
                                        }));
        all.forEach(actual -> assertSame(expected, actual));
    }

    private static void assertRefused(
            Class<? extends Exception> type, String message, LossWeight weight, int forwards) {
        String actual =
                assertThrows(
                                type,
                                () ->
                                        train(
                                                P2pEngine.NAME,
                                                config(weight),
                                                own -> collect(own.trainer(), forwards)))
                        .getMessage();
        assertTrue(actual.contains(message), actual);
    }

    private static void collect(Trainer trainer, int forwards) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDArray x = trainer.getManager().ones(new Shape(2, Training.FEATURES));
            NDArray sum = x.sum();
            for (int i = 0; i < forwards; i++) {
                sum = trainer.forward(new NDList(x)).head().sum();
            }
            collector.backward(sum);
        }
    }

    @Test
    void refusesLossesOfUnknownWeight() {
        Class<? extends Exception> state = IllegalStateException.class;
        assertRefused(state, "has had no backward pass", LossWeight.ROWS, 2);
        assertRefused(state, "a forward pass of this trainer comes first", LossWeight.ROWS, 0);
        Class<? extends Exception> argument = IllegalArgumentException.class;
        assertRefused(argument, "must be 0 or more, not -1.0", (data, labels) -> -1, 1);
        assertRefused(argument, "counts labels, but there are none", LossWeight.tokens(0), 1);
    }

    @Test
    void zeroItemsLeaveGradientsAsTheyAre() {
        train(
                P2pEngine.NAME,
                config((data, labels) -> 0),
                own -> {
                    collect(own.trainer(), 1);
                    assertEquals(0, ((DataParallelTrainer) own.trainer()).clipGradNorm(1));
                });
    }
}
