// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.util.PairList;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.launch.MpiRun;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Graphs that change from pass to pass and from rank to rank, with parameters that a rank or all
 * ranks do not use, train as on one device.
 */
class UnusedParametersTest {

    private static final int WIDTH = 6;
    private static final int ROWS = 4;
    private static final int STEPS = 4;
    private static final float TOLERANCE = 1e-5f;

    /** Computes one of its layers, by the sign of the first element; the last layer never. */
    private static final class Choice extends AbstractBlock {

        private final List<Block> layers =
                List.of(layer("positive"), layer("negative"), layer("unused"));

        private Block layer(String name) {
            return addChildBlock(name, Linear.builder().setUnits(WIDTH).build());
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            float first = NoGradient.get(() -> inputs.head().flatten().getFloat(0));
            return layers.get(first > 0 ? 0 : 1).forward(store, inputs, training);
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            layers.forEach(layer -> layer.initialize(manager, type, shapes));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    /** Returns a rank's rows in a step, whose sign differs between ranks, and between steps. */
    private static float[] rows(int rank, int step) {
        Random random = new Random(10 * step + rank);
        float[] values = new float[ROWS * WIDTH];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        boolean positive = step == STEPS - 1 || (rank + step) % 2 == 0;
        values[0] = Math.abs(values[0]) * (positive ? 1 : -1);
        return values;
    }

    private static float[][] train(
            String engine, Device device, DataParallelConfig config, int from, int to) {
        config.optDevices(new Device[] {device}).optOptimizer(Training.optimizer("momentum"));
        SequentialBlock block =
                new SequentialBlock()
                        .add(new Choice())
                        .add(Activation::tanh)
                        .add(new Choice())
                        .add(Linear.builder().setUnits(2).build());
        block.setInitializer(Training.weights(3), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("choices", device, engine)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, WIDTH));
                for (int step = 0; step < STEPS; step++) {
                    for (int rank = from; rank < to; rank++) {
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDArray x =
                                    trainer.getManager()
                                            .create(rows(rank, step), new Shape(ROWS, WIDTH));
                            NDArray y = trainer.forward(new NDList(x)).head();
                            collector.backward(y.square().mean().div(to - from));
                        }
                    }
                    trainer.step();
                }
            }
            return NoGradient.get(
                    () ->
                            block.getParameters().values().stream()
                                    .map(own -> own.getArray().toFloatArray())
                                    .toArray(float[][]::new));
        }
    }

    /** Trains on DJL's engine, with all ranks' batches. */
    static float[][] expected(Device device, int ranks) {
        return train("PyTorch", device, new DataParallelConfig(Training.loss()), 0, ranks);
    }

    /** Trains on a rank of a group. */
    static void check(ProcessGroup group, ShardingStrategy sharding, float[][] expected) {
        DataParallelConfig config =
                new DataParallelConfig(Training.loss())
                        .optProcessGroup(group)
                        .optBucketBytes(1)
                        .optShardingStrategy(sharding);
        int rank = group.rank();
        float[][] actual = train(P2pEngine.NAME, group.device(), config, rank, rank + 1);
        for (int i = 0; i < expected.length; i++) {
            assertArrayEquals(expected[i], actual[i], TOLERANCE, "parameter " + i);
        }
    }

    @ParameterizedTest
    @EnumSource(ShardingStrategy.class)
    void ranksUseDifferentLayers(ShardingStrategy sharding) {
        float[][] expected = expected(Device.cpu(), 3);
        List<ProcessGroup> groups = ProcessGroups.local(3);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        check(group, sharding, expected);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** A rank under mpirun. */
    static final class Main {

        private Main() {}

        public static void main(String[] args) throws Exception {
            try (ProcessGroup group = ProcessGroups.init("mpi")) {
                float[][] expected = expected(Device.cpu(), group.worldSize());
                for (ShardingStrategy sharding : ShardingStrategy.values()) {
                    check(group, sharding, expected);
                }
            }
            System.out.println("equal parameters");
        }
    }

    @Test
    @Tag("slow")
    @Timeout(200)
    void ranksOfMpiUseDifferentLayers() throws Exception {
        MpiRun.Result result = MpiRun.OPEN_MPI.run(2, Main.class);
        assertEquals(0, result.code(), result.output());
        assertEquals(3, result.output().split("equal parameters", -1).length, result.output());
    }
}
