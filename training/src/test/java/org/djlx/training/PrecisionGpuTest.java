// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.convolutional.Conv2d;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.GradientCollector;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.precision.ActivationCheckpoint;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Mixed precision, activation checkpoints, shards and checkpoints in the background on one GPU. */
@Tag("gpu")
@Timeout(300)
class PrecisionGpuTest {

    private interface Program {
        void run(DataParallelTrainer trainer) throws Exception;
    }

    @BeforeEach
    void requireGpu() {
        GpuTests.require(1);
    }

    private static Block block(float dropout, boolean wrapped) {
        SequentialBlock layer = new SequentialBlock().add(Linear.builder().setUnits(64).build());
        layer.add(Activation::tanh).add(Dropout.builder().optRate(dropout).build());
        return new SequentialBlock()
                .add(Conv2d.builder().setKernelShape(new Shape(3, 3)).setFilters(8).build())
                .add(Activation::relu)
                .add(Blocks.batchFlattenBlock())
                .add(wrapped ? ActivationCheckpoint.wrap(layer) : layer)
                .add(Linear.builder().setUnits(10).build());
    }

    private static void train(DataParallelConfig config, Block block, Program program)
            throws Exception {
        config.optDevices(new Device[] {Device.gpu(0)});
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("precise", Device.gpu(0), P2pEngine.NAME)) {
            model.setBlock(block);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 3, 10, 10));
                program.run(trainer);
            }
        }
    }

    private static float step(DataParallelTrainer trainer, int seed) {
        Random random = new Random(seed);
        float[] values = new float[16 * 300];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDArray x = manager.create(values, new Shape(16, 3, 10, 10));
            NDArray loss = trainer.forward(new NDList(x)).head().square().mean();
            collector.backward(loss);
            trainer.step();
            return loss.getFloat();
        }
    }

    private static List<Float> losses(DataParallelConfig config, Block block) throws Exception {
        List<Float> losses = new ArrayList<>();
        train(
                config,
                block,
                trainer -> {
                    for (int step = 0; step < 3; step++) {
                        losses.add(step(trainer, step));
                    }
                });
        return losses;
    }

    private static DataParallelConfig config() {
        return config("adam");
    }

    private static DataParallelConfig config(String optimizer) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optOptimizer(Training.optimizer(optimizer));
        return config;
    }

    /**
     * Three layers round in each of up to three passes. Plain descent, as Adam's steps are as long
     * for gradients that are nothing but rounding.
     */
    @ParameterizedTest
    @EnumSource(value = MixedPrecisionPolicy.class, mode = EnumSource.Mode.EXCLUDE, names = "NONE")
    void mixedPrecisionRoundsToItsType(MixedPrecisionPolicy policy) throws Exception {
        List<Float> expected = losses(config("sgd"), block(0, false));
        GradScaler scaler = new GradScaler(64, 2000);
        List<Float> actual =
                losses(
                        config("sgd").optMixedPrecision(policy).optGradScaler(scaler),
                        block(0, true));
        double rounding = policy == MixedPrecisionPolicy.BFLOAT16 ? 1.0 / 256 : 1.0 / 2048;
        assertEquals(3, scaler.goodSteps());
        assertNotEquals(expected, actual);
        for (int i = 0; i < 3; i++) {
            double allowed = rounding * 3 * (i + 1) * Math.max(1, expected.get(i));
            assertEquals(expected.get(i), actual.get(i), allowed, "step " + i + ", " + actual);
        }
    }

    /** The backward pass compares the predictions, and throws if the dropout is another. */
    @Test
    void recomputedDropoutDrawsTheSameNumbers() throws Exception {
        List<Float> losses = losses(config(), block(0.5f, true));
        assertEquals(3, losses.stream().distinct().count());
    }

    /** A group of one rank gathers copies of its shards, and reduces to copies of gradients. */
    @Test
    void fullyShardedRankTrainsAsAReplicatedOne() throws Exception {
        GpuTests.require(1, NativeLibrary.NCCL);
        List<Float> expected = losses(config(), block(0, false));
        NcclOptions options =
                NcclOptions.builder().optDevices(new Device[] {Device.gpu(0)}).build();
        List<ProcessGroup> groups = ProcessGroups.local("nccl", 1, options);
        try {
            DataParallelConfig sharded =
                    config().optShardingStrategy(ShardingStrategy.FULL_SHARD)
                            .optProcessGroup(groups.get(0));
            List<Float> actual = losses(sharded, block(0, false));
            for (int i = 0; i < 3; i++) {
                assertEquals(expected.get(i), actual.get(i), 1e-5 * expected.get(0), "step " + i);
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void checkpointIsWrittenInTheBackground(@TempDir Path directory) throws Exception {
        CheckpointManager.Builder checkpoints =
                CheckpointManager.builder().setDirectory(directory).optAsync(true);
        List<float[]> saved = new ArrayList<>();
        List<Float> expected = new ArrayList<>();
        train(
                config(),
                block(0, false),
                trainer -> {
                    step(trainer, 0);
                    CheckpointManager manager = checkpoints.build();
                    manager.save(trainer, new TrainingProgress(1, 0, 1));
                    saved.addAll(parameters(trainer));
                    expected.add(step(trainer, 1));
                    expected.add(step(trainer, 2));
                    manager.await(trainer);
                });
        train(
                config(),
                block(0, false),
                trainer -> {
                    step(trainer, 7);
                    checkpoints.build().restore(trainer);
                    List<float[]> restored = parameters(trainer);
                    for (int i = 0; i < saved.size(); i++) {
                        assertArrayEquals(saved.get(i), restored.get(i));
                    }
                    assertEquals(expected.get(0), step(trainer, 1), 1e-5);
                    assertEquals(expected.get(1), step(trainer, 2), 1e-5);
                });
    }

    private static List<float[]> parameters(DataParallelTrainer trainer) {
        List<float[]> values = new ArrayList<>();
        for (LocalParameter own : trainer.replicas().get(0).parameters()) {
            values.add(NoGradient.get(() -> own.array().toFloatArray()));
        }
        return values;
    }
}
