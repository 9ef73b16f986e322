// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.convolutional.Conv1d;
import ai.djl.nn.convolutional.Conv3d;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.precision.ActivationCheckpoint;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Products in 16 bit with float32 parameters, and the scale of gradients, as PyTorch's. */
class MixedPrecisionTest {

    private static final float[] WEIGHTS = {0.5f, -1, 2};
    private static final float[] BATCH = {1, 2, -1, 0.5f, 3, 1, -2, 1, 0.25f, 1, 1, 1};

    private interface Program {
        void run(DataParallelTrainer trainer) throws Exception;
    }

    private static DataParallelConfig config(GradScaler scaler) {
        DataParallelConfig config = new DataParallelConfig(Training.loss()).optGradScaler(scaler);
        config.optOptimizer(Training.optimizer("sgd"));
        return config;
    }

    private static Block linear() {
        Block linear = Linear.builder().setUnits(1).optBias(false).build();
        linear.setInitializer(
                (manager, shape, type) -> manager.create(WEIGHTS, shape), Parameter.Type.WEIGHT);
        return new SequentialBlock().add(linear);
    }

    private static void train(DataParallelConfig config, Block block, Program program)
            throws Exception {
        try (Model model = Model.newInstance("mixed", P2pEngine.NAME)) {
            model.setBlock(block);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 3));
                program.run(trainer);
            }
        }
    }

    private static GradScaler scaler() {
        return new GradScaler(1024, 3);
    }

    /** Computes the loss {@code factor * sum(y^2)} and its gradients. */
    private static void backward(DataParallelTrainer trainer, float factor) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDArray x = trainer.getManager().create(BATCH, new Shape(4, 3));
            NDArray y = trainer.forward(new NDList(x)).head();
            collector.backward(y.square().sum().mul(factor));
        }
    }

    private static float[] weights(DataParallelTrainer trainer) {
        NDArray weight = trainer.replicas().get(0).parameters().get(0).array();
        return NoGradient.get(weight::toFloatArray);
    }

    private static float[] gradient(DataParallelTrainer trainer) {
        NDArray weight = trainer.replicas().get(0).parameters().get(0).array();
        return weight.getGradient().toFloatArray();
    }

    /** Of y = x w, with the loss sum(y^2), in float64. */
    private static double[] expectedGradient() {
        double[] gradient = new double[3];
        for (int row = 0; row < 4; row++) {
            double y = 0;
            for (int k = 0; k < 3; k++) {
                y += (double) BATCH[row * 3 + k] * WEIGHTS[k];
            }
            for (int k = 0; k < 3; k++) {
                gradient[k] += 2 * y * BATCH[row * 3 + k];
            }
        }
        return gradient;
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void gradientsCarryTheScaleUntilClippingOrStep(int ranks) throws Exception {
        double[] expected = expectedGradient();
        double norm =
                Math.sqrt(
                        expected[0] * expected[0]
                                + expected[1] * expected[1]
                                + expected[2] * expected[2]);
        train(
                config(scaler()).optRanks(ranks),
                linear(),
                trainer -> {
                    backward(trainer, 1);
                    for (int k = 0; k < 3; k++) {
                        assertEquals(1024 * expected[k], gradient(trainer)[k], 1e-1);
                    }
                    assertEquals(norm, trainer.clipGradNorm(1e9), 1e-4);
                    assertEquals(norm, trainer.clipGradNorm(1e9), 1e-4); // not divided twice
                    for (int k = 0; k < 3; k++) {
                        assertEquals(expected[k], gradient(trainer)[k], 1e-4);
                    }
                    IllegalStateException e =
                            assertThrows(IllegalStateException.class, () -> backward(trainer, 1));
                    assertTrue(e.getMessage().contains("call step"), e.getMessage());
                    trainer.step();
                    for (int k = 0; k < 3; k++) {
                        assertEquals(WEIGHTS[k] - 0.05 * expected[k], weights(trainer)[k], 1e-5);
                    }
                });
    }

    @ParameterizedTest
    @CsvSource({"1, false", "2, false", "2, true"})
    void infiniteGradientSkipsTheStepAndHalvesTheScale(int ranks, boolean clips) throws Exception {
        GradScaler scaler = scaler();
        train(
                config(scaler).optRanks(ranks),
                linear(),
                trainer -> {
                    backward(trainer, Float.POSITIVE_INFINITY);
                    if (clips) {
                        assertTrue(Double.isNaN(trainer.clipGradNorm(1)));
                    }
                    trainer.step();
                    assertArrayEquals(WEIGHTS, weights(trainer));
                    assertEquals(512, scaler.scale());
                    backward(trainer, 1); // The gradients of the skipped step are gone.
                    assertEquals(512 * expectedGradient()[0], gradient(trainer)[0], 1e-1);
                    trainer.step();
                    assertEquals(1, scaler.goodSteps());
                    for (int step = 0; step < 2; step++) {
                        assertEquals(512, scaler.scale());
                        backward(trainer, 1e-3f);
                        trainer.step();
                    }
                    assertEquals(1024, scaler.scale()); // 3 good steps in a row
                    assertEquals(0, scaler.goodSteps());
                });
    }

    /** The gradient of one rank alone is infinite, and that of another part of a shard. */
    @ParameterizedTest
    @EnumSource(ShardingStrategy.class)
    void overflowOnOneRankSkipsTheStepOnAll(ShardingStrategy strategy) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(groups, group -> skip(group, strategy));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static Object skip(ProcessGroup group, ShardingStrategy strategy) throws Exception {
        GradScaler scaler = scaler();
        DataParallelConfig config = config(scaler).optProcessGroup(group);
        train(
                config.optShardingStrategy(strategy),
                linear(),
                trainer -> {
                    backward(trainer, group.rank() == 1 ? Float.NaN : 1);
                    trainer.step();
                    assertEquals(512, scaler.scale());
                    DataParallelTrainer.FullParameters full = trainer.summonFullParameters();
                    Block block = trainer.getModel().getBlock();
                    NDArray array = block.getParameters().valueAt(0).getArray();
                    assertArrayEquals(WEIGHTS, NoGradient.get(array::toFloatArray));
                    full.close();
                    backward(trainer, 1);
                    trainer.step();
                    assertEquals(1, scaler.goodSteps());
                });
        return null;
    }

    /** Otherwise one rank's gradients would be scaled, or rounded, and the other's not. */
    @ParameterizedTest
    @CsvSource({"4, NONE, NO_SHARD", "3, BFLOAT16, NO_SHARD", "3, NONE, FULL_SHARD"})
    void rejectsRanksWithDifferentOptions(
            int growthInterval, MixedPrecisionPolicy policy, ShardingStrategy strategy) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        DataParallelConfig config = config(scaler()).optProcessGroup(group);
                        if (group.rank() == 0) {
                            config.optMixedPrecision(policy).optShardingStrategy(strategy);
                            config.optGradScaler(new GradScaler(1024, growthInterval));
                        }
                        IllegalArgumentException e =
                                assertThrows(
                                        IllegalArgumentException.class,
                                        () -> train(config, linear(), trainer -> {}));
                        assertTrue(e.getMessage().contains("different options"), e.getMessage());
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** NaN differs from NaN, but not because other random numbers were drawn. */
    @Test
    void overflowInACheckpointedBlockSkipsTheStep() throws Exception {
        SequentialBlock layer = new SequentialBlock();
        layer.add(linear()).add(Dropout.builder().optRate(0.1f).build());
        train(
                config(scaler()).optMixedPrecision(MixedPrecisionPolicy.FLOAT16),
                new SequentialBlock().add(ActivationCheckpoint.wrap(layer)),
                trainer -> {
                    backward(trainer, 1);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        // 1e6 is infinite in float16, so its products have both signs.
                        NDArray x = trainer.getManager().ones(new Shape(4, 3)).mul(1e6f);
                        collector.backward(trainer.forward(new NDList(x)).head().square().sum());
                    }
                    trainer.step();
                    assertEquals(512, trainer.gradScaler().scale());
                    assertArrayEquals(WEIGHTS, weights(trainer));
                });
    }

    @Test
    void checkpointKeepsTheScale(@TempDir Path directory) throws Exception {
        CheckpointManager.Builder checkpoints = CheckpointManager.builder().setDirectory(directory);
        train(
                config(scaler()),
                linear(),
                trainer -> {
                    backward(trainer, Float.NaN);
                    trainer.step();
                    backward(trainer, 1);
                    trainer.step();
                    checkpoints.build().save(trainer, new TrainingProgress(2, 0, 2));
                });
        GradScaler resumed = scaler();
        train(config(resumed), linear(), trainer -> checkpoints.build().restore(trainer));
        assertEquals(512, resumed.scale());
        assertEquals(1, resumed.goodSteps());
        train(config(null), linear(), trainer -> checkpoints.build().restore(trainer));
    }

    /** Reports the types and values that a program sees around a layer. */
    private static final class Seen extends AbstractBlock {

        private Block layer; // The trainer replaces it.
        private NDArray output;

        Seen(Block layer) {
            this.layer = addChildBlock("layer", layer);
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDList outputs = layer.forward(store, inputs, training);
            output = outputs.head();
            return outputs;
        }

        @Override
        protected void initializeChildBlocks(
                ai.djl.ndarray.NDManager manager, DataType type, Shape... shapes) {
            layer.initialize(manager, type, shapes);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return layer.getOutputShapes(shapes);
        }
    }

    /** 1 + 2^-9 is 1 in bfloat16, so a product with it shows the type; its result is float32. */
    @Test
    void productsAreRoundedAndAllElseIsFloat32() throws Exception {
        Block layer = Linear.builder().setUnits(1).build();
        layer.setInitializer((manager, shape, type) -> manager.ones(shape), p -> true);
        Seen block = new Seen(layer);
        train(
                config(null).optMixedPrecision(MixedPrecisionPolicy.BFLOAT16),
                block,
                trainer -> {
                    float[] x = {1 + 1f / 512, 0, 0};
                    NDList data = new NDList(trainer.getManager().create(x, new Shape(1, 3)));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        trainer.forward(data);
                        assertEquals(ScalarType.FLOAT32, Torch.scalarType(block.output));
                        assertEquals(DataType.FLOAT32, block.output.getDataType());
                        assertEquals(2, block.output.getFloat());
                        collector.backward(block.output.sum());
                    }
                    for (LocalParameter own : trainer.replicas().get(0).parameters()) {
                        assertEquals(ScalarType.FLOAT32, Torch.scalarType(own.array()));
                    }
                    assertArrayEquals(new float[] {1, 0, 0}, gradient(trainer));
                    trainer.step();
                    assertArrayEquals(new float[] {0.95f, 1, 1}, weights(trainer), 1e-7f);
                    assertNull(trainer.gradScaler());
                });
        // A later trainer without the policy computes in float32.
        block.clear();
        train(
                config(null),
                block,
                trainer -> {
                    float[] x = {1 + 1f / 512, 0, 0};
                    NDList data = new NDList(trainer.getManager().create(x, new Shape(1, 3)));
                    assertEquals(2 + 1f / 512, trainer.evaluate(data).head().getFloat());
                });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 3})
    void convolutionsOf1To3DimensionsComputeInHalf(int dimensions) throws Exception {
        Block block =
                dimensions == 1
                        ? Conv1d.builder().setKernelShape(new Shape(1)).setFilters(1).build()
                        : Conv3d.builder().setKernelShape(new Shape(1, 1, 1)).setFilters(1).build();
        block.setInitializer((manager, shape, type) -> manager.ones(shape), p -> true);
        Shape shape = dimensions == 1 ? new Shape(1, 1, 1) : new Shape(1, 1, 1, 1, 1);
        try (Model model = Model.newInstance("mixed", P2pEngine.NAME)) {
            model.setBlock(new SequentialBlock().add(block));
            DataParallelConfig config =
                    config(null).optMixedPrecision(MixedPrecisionPolicy.BFLOAT16);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(shape);
                NDArray x = trainer.getManager().full(shape, 1 + 1f / 512);
                assertEquals(2, trainer.evaluate(new NDList(x)).head().toFloatArray()[0]);
            }
        }
    }

    private static void assertRefused(String words, DataParallelConfig config, Block block) {
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class, () -> train(config, block, trainer -> {}));
        assertTrue(e.getMessage().contains(words), e.getMessage());
    }

    /** Keeps a layer where the trainer cannot replace it. */
    private static final class Fixed extends AbstractBlock {

        private Conv1d layer;

        Fixed() {
            layer = Conv1d.builder().setKernelShape(new Shape(1)).setFilters(1).build();
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return layer.forward(store, inputs, training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    @Test
    void rejectsBlocksWithoutReplaceableLayers() throws Exception {
        DataParallelConfig config = config(null).optMixedPrecision(MixedPrecisionPolicy.FLOAT16);
        assertEquals(65536, config.gradScaler().scale());
        assertRefused("Dropout has none", config, Dropout.builder().build());
        assertRefused("Fixed cannot be computed in FLOAT16", config, new Fixed());
        try (Model model = Model.newInstance("mixed", P2pEngine.NAME)) {
            model.setDataType(DataType.FLOAT64);
            Block block = Linear.builder().setUnits(1).build();
            model.setBlock(block);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                IllegalArgumentException e =
                        assertThrows(
                                IllegalArgumentException.class,
                                () -> trainer.initialize(new Shape(1, 3)));
                assertTrue(e.getMessage().contains("'weight' is FLOAT64"), e.getMessage());
            }
        }
    }

    @Test
    void scalerRejectsOptionsOutOfRange() {
        double infinity = Double.POSITIVE_INFINITY;
        for (double wrong : new double[] {0, -1, Double.NaN, infinity, 1e39, 1e-39}) {
            assertThrows(IllegalArgumentException.class, () -> new GradScaler(wrong, 1));
        }
        assertThrows(IllegalArgumentException.class, () -> new GradScaler(1, 0));
        GradScaler scaler = scaler();
        assertThrows(IllegalArgumentException.class, () -> scaler.restore(-1, 0));
        assertThrows(IllegalArgumentException.class, () -> scaler.restore(1, -1));
        for (int step = 0; step < 10000; step++) {
            scaler.update(true);
        }
        assertTrue(scaler.scale() >= Float.MIN_NORMAL);
        for (int step = 0; step < 3 * 10000; step++) {
            scaler.update(false);
        }
        assertTrue(scaler.scale() <= Float.MAX_VALUE);
    }
}
