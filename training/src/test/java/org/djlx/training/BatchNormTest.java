// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.GhostBatchNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Batch normalisation of several ranks beside that of engine PyTorch. */
@Timeout(120)
class BatchNormTest {

    private static final int FEATURES = 3;

    private static Block withLinear(Block norm) {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(4).build())
                .add(norm)
                .add(Linear.builder().setUnits(2).build());
    }

    private interface Body {
        void run(Trainer trainer) throws Exception;
    }

    /** Runs code with a trainer; returns the parameters after it. 0 ranks: engine PyTorch. */
    private static List<float[]> train(Block block, int ranks, Body body) throws Exception {
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        DefaultTrainingConfig config =
                ranks == 0
                        ? new DefaultTrainingConfig(Training.loss())
                        : new DataParallelConfig(Training.loss()).optRanks(ranks);
        config.optOptimizer(Training.optimizer("sgd"));
        try (Model model = Model.newInstance("norm", ranks == 0 ? "PyTorch" : P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(2, FEATURES));
                body.run(trainer);
            }
            return parameters(block);
        }
    }

    private static NDArray batch(NDManager manager, int rows) {
        return manager.arange(rows * FEATURES).mul(0.7f).sin().reshape(rows, FEATURES);
    }

    /** Trains one batch, and returns the predictions. */
    private static float[] step(Trainer trainer, int rows) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray y;
            try (GradientCollector collector = trainer.newGradientCollector()) {
                y = trainer.forward(new NDList(batch(manager, rows))).head();
                collector.backward(y.get(":, 0").square().sum());
            }
            trainer.step();
            return y.toFloatArray();
        }
    }

    private static List<float[]> parameters(Block block) {
        List<float[]> values = new ArrayList<>();
        NoGradient.run(
                () ->
                        block.getParameters()
                                .values()
                                .forEach(each -> values.add(each.getArray().toFloatArray())));
        return values;
    }

    /** The first batch is compared with a whole pass; a later one only ranks compute. */
    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2, 3})
    void oneValuePerChannelIsRejectedAndTrainingContinues(int ranks) throws Exception {
        List<float[]> actual =
                train(
                        withLinear(BatchNorm.builder().build()),
                        ranks,
                        trainer -> {
                            for (int rows : new int[] {1, 4, 1, 3}) {
                                if (rows == 1) {
                                    EngineException e =
                                            assertThrows(
                                                    EngineException.class, () -> step(trainer, 1));
                                    assertTrue(
                                            e.getMessage()
                                                    .startsWith("Expected more than 1 value per"),
                                            e.getMessage());
                                } else {
                                    step(trainer, rows);
                                }
                            }
                        });
        List<float[]> expected =
                train(
                        withLinear(BatchNorm.builder().build()),
                        0,
                        trainer -> {
                            step(trainer, 4);
                            step(trainer, 3);
                        });
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), 2e-5f, "parameter " + i);
        }
    }

    @Test
    void processesOfOneRowEachTrainAsOneBatch() throws Exception {
        float[][] running = new float[3][];
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        Block block = BatchNorm.builder().build();
                        try (Model model = Model.newInstance("norm", P2pEngine.NAME)) {
                            model.setBlock(block);
                            DataParallelConfig config =
                                    new DataParallelConfig(Training.loss()).optProcessGroup(group);
                            config.optOptimizer(Training.optimizer("sgd"));
                            try (Trainer trainer = model.newTrainer(config)) {
                                trainer.initialize(new Shape(1, FEATURES));
                                try (GradientCollector collector = trainer.newGradientCollector()) {
                                    String row = group.rank() + ":" + (group.rank() + 1);
                                    NDArray x = batch(trainer.getManager(), 2).get(row);
                                    NDArray y = trainer.forward(new NDList(x)).head();
                                    collector.backward(y.sum());
                                }
                            }
                            running[group.rank()] = parameters(block).get(3);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        List<float[]> whole =
                train(
                        BatchNorm.builder().build(),
                        0,
                        trainer -> {
                            try (GradientCollector collector = trainer.newGradientCollector()) {
                                NDArray x = batch(trainer.getManager(), 2);
                                collector.backward(trainer.forward(new NDList(x)).head().sum());
                            }
                        });
        running[2] = whole.get(3);
        assertArrayEquals(running[2], running[0], 1e-6f);
        assertArrayEquals(running[0], running[1]);
    }

    /** The program saves the block that it made, not the one that the trainer computes with. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void userBlockIsInitialisedToo(int ranks) throws Exception {
        for (Block block :
                List.of(
                        BatchNorm.builder().build(),
                        GhostBatchNorm.builder().build(),
                        Linear.builder().setUnits(2).build())) {
            DataParallelConfig config = new DataParallelConfig(Training.loss()).optRanks(ranks);
            if (block instanceof Linear) {
                config.optMixedPrecision(MixedPrecisionPolicy.BFLOAT16);
            }
            try (Model model = Model.newInstance("root", P2pEngine.NAME)) {
                model.setBlock(block);
                try (Trainer trainer = model.newTrainer(config)) {
                    trainer.initialize(new Shape(2, FEATURES));
                    assertTrue(block.isInitialized());
                    ByteArrayOutputStream own = new ByteArrayOutputStream();
                    block.saveParameters(new DataOutputStream(own));
                    ByteArrayOutputStream other = new ByteArrayOutputStream();
                    model.getBlock().saveParameters(new DataOutputStream(other));
                    assertEquals(other.size(), own.size());
                }
            }
        }
    }

    /** With one virtual batch, as DJL has it with up to 128 rows, TabNet's layer is a BatchNorm. */
    @ParameterizedTest
    @ValueSource(ints = {2, 3})
    void ghostBatchNormOfOneVirtualBatchTrainsAsOneDevice(int ranks) throws Exception {
        List<float[]> expected = new ArrayList<>();
        for (int turn = 0; turn < 2; turn++) {
            Block block = withLinear(GhostBatchNorm.builder().build());
            int own = turn == 0 ? 0 : ranks;
            List<float[]> actual = new ArrayList<>();
            List<float[]> trained =
                    train(
                            block,
                            own,
                            trainer -> {
                                for (int rows : new int[] {6, 2, 5}) {
                                    actual.add(step(trainer, rows));
                                }
                                NDArray x = batch(trainer.getManager(), 4);
                                actual.add(trainer.evaluate(new NDList(x)).head().toFloatArray());
                            });
            actual.addAll(trained);
            for (int i = 0; i < actual.size() && turn == 1; i++) {
                assertArrayEquals(expected.get(i), actual.get(i), 2e-5f, "array " + i);
            }
            expected.addAll(actual);
        }
    }

    /** As with DDP, rank 0's statistics are those of all ranks. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void unsynchronisedRanksEvaluateAlike(boolean ghost) throws Exception {
        Block norm = ghost ? GhostBatchNorm.builder().build() : BatchNorm.builder().build();
        DataParallelConfig config =
                new DataParallelConfig(Training.loss()).optRanks(3).optSyncBatchNorm(false);
        config.optOptimizer(Training.optimizer("sgd"));
        try (Model model = Model.newInstance("norm", P2pEngine.NAME)) {
            model.setBlock(withLinear(norm));
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(2, FEATURES));
                NDManager manager = trainer.getManager();
                for (int rows : new int[] {6, 7}) {
                    step(trainer, rows);
                    NDArray equal = manager.ones(new Shape(6, FEATURES));
                    float[] y = trainer.evaluate(new NDList(equal)).head().toFloatArray();
                    for (int i = 2; i < y.length; i++) {
                        assertEquals(y[i % 2], y[i], 1e-6f);
                    }
                }
            }
        }
    }

    /** Also after a process has trained on fewer batches: its row then counts for nothing. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void unsynchronisedStatisticsComeFromTheFirstBusyProcess(boolean join) throws Exception {
        float[][] running = new float[2][];
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        Block block = withLinear(BatchNorm.builder().build());
                        DataParallelConfig config =
                                new DataParallelConfig(Training.loss())
                                        .optProcessGroup(group)
                                        .optJoin(join)
                                        .optSyncBatchNorm(false);
                        config.optOptimizer(Training.optimizer("sgd"));
                        try (Model model = Model.newInstance("norm", P2pEngine.NAME)) {
                            model.setBlock(block);
                            try (DataParallelTrainer trainer =
                                    (DataParallelTrainer) model.newTrainer(config)) {
                                trainer.initialize(new Shape(2, FEATURES));
                                int batches = join && group.rank() == 0 ? 1 : 3;
                                for (int i = 0; i < batches; i++) {
                                    step(trainer, 4 + 2 * group.rank() + i);
                                }
                                trainer.join();
                            }
                            running[group.rank()] = parameters(block).get(4);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        assertArrayEquals(running[0], running[1]);
        for (float value : running[0]) {
            assertTrue(value != 0 && Float.isFinite(value), "statistics are those of training");
        }
    }

    @Test
    void ghostBatchNormRejectsSeveralVirtualBatches() throws Exception {
        train(
                withLinear(GhostBatchNorm.builder().optVirtualBatchSize(4).build()),
                2,
                trainer -> {
                    step(trainer, 4);
                    String message =
                            assertThrows(EngineException.class, () -> step(trainer, 6))
                                    .getMessage();
                    assertTrue(message.contains("6 rows of all ranks"), message);
                    assertTrue(message.contains("optVirtualBatchSize"), message);
                    float[] y = step(trainer, 3);
                    assertFalse(Float.isNaN(y[0]));
                });
    }
}
