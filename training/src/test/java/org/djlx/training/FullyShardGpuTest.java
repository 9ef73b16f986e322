// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
import ai.djl.nn.ParallelBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.FullyShardPolicy;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Two ranks of {@code cuda_p2p} divide the parameters of a small transformer, each on a GPU of its
 * own or both on one. Before a group is used, each rank trains alone: this loads the kernels of
 * cuBLAS, which may not be loaded while a peer waits.
 */
@Tag("gpu")
@Tag("alone")
@Timeout(120)
class FullyShardGpuTest {

    private static final int WIDTH = 256;
    private static final int HEADS = 4;
    private static final int LENGTH = 32;
    private static final int ROWS = 4; // of each rank
    private static final int LAYERS = 3;
    private static final int STEPS = 4;

    @BeforeEach
    void requireGpu() {
        P2pRanks.require(2);
    }

    /** A layer of a transformer, whose norms come first. */
    private static final class Layer extends AbstractBlock {

        private final Block[] norms = {norm("norm1"), norm("norm2")};
        private final Block inputs = linear("inputs", 3 * WIDTH);
        private final Block output = linear("output", WIDTH);
        private final Block up = linear("up", 4 * WIDTH);
        private final Block down = linear("down", WIDTH);

        private Block norm(String name) {
            return addChildBlock(name, LayerNorm.builder().axis(2).build());
        }

        private Block linear(String name, int units) {
            return addChildBlock(name, Linear.builder().setUnits(units).build());
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList arrays,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = arrays.singletonOrThrow();
            long batch = x.getShape().get(0);
            Shape heads = new Shape(batch, LENGTH, 3 * HEADS, WIDTH / HEADS);
            NDArray all = apply(inputs, store, apply(norms[0], store, x, training), training);
            NDList parts = all.reshape(heads).transpose(0, 2, 1, 3).split(3, 1);
            NDArray scores = parts.get(0).matMul(parts.get(1).transpose(0, 1, 3, 2));
            NDArray mixed = scores.softmax(3).matMul(parts.get(2)).transpose(0, 2, 1, 3);
            NDArray joined = mixed.reshape(new Shape(batch, LENGTH, WIDTH));
            NDArray y = x.add(apply(output, store, joined, training));
            NDArray hidden = apply(up, store, apply(norms[1], store, y, training), training);
            return new NDList(y.add(apply(down, store, Activation.relu(hidden), training)));
        }

        private static NDArray apply(
                Block block, ParameterStore store, NDArray x, boolean training) {
            return block.forward(store, new NDList(x), training).singletonOrThrow();
        }

        @Override
        protected void initializeChildBlocks(
                NDManager manager, DataType type, Shape... inputShapes) {
            Shape x = inputShapes[0];
            Shape hidden = new Shape(x.get(0), x.get(1), 4 * WIDTH);
            for (Block block : List.of(norms[0], norms[1], inputs, output, up)) {
                block.initialize(manager, type, x);
            }
            down.initialize(manager, type, hidden);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }
    }

    private static SequentialBlock transformer() {
        SequentialBlock block = new SequentialBlock();
        for (int layer = 0; layer < LAYERS; layer++) {
            block.add(new Layer());
        }
        return block.add(Linear.builder().setUnits(8).build());
    }

    private static DataParallelConfig config() {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        Tracker rate = Tracker.fixed(1e-3f);
        config.optOptimizer(Optimizer.adam().optLearningRateTracker(rate).build());
        return config;
    }

    private static DataParallelConfig sharded(ProcessGroup group) {
        return config().optShardingStrategy(ShardingStrategy.FULL_SHARD).optProcessGroup(group);
    }

    /** Trains on a part of each batch, and returns the losses. */
    private static List<Float> train(
            Device device, DataParallelConfig config, Block block, int part, int parts) {
        config.optDevices(new Device[] {device});
        Initializer weights = Training.weights(5);
        block.setInitializer(
                (owner, shape, type) -> weights.initialize(owner, shape, type).muli(0.1f),
                Parameter.Type.WEIGHT);
        List<Float> losses = new ArrayList<>();
        try (Model model = Model.newInstance("sharded", device, P2pEngine.NAME)) {
            model.setBlock(block);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config);
                    NDManager manager = trainer.getManager().newSubManager()) {
                trainer.initialize(new Shape(1, LENGTH, WIDTH));
                CurrentStreams.await(device); // It may wait for the peer's parameters.
                List<NDArray> batches = new ArrayList<>();
                for (int step = 0; step < STEPS; step++) {
                    batches.add(batch(manager, step, part, parts));
                }
                for (NDArray x : batches) {
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray y = trainer.forward(new NDList(x)).head();
                        NDArray loss = y.square().mean();
                        collector.backward(loss);
                        trainer.step();
                        CurrentStreams.await(device);
                        losses.add(loss.getFloat());
                    }
                }
            }
        }
        return losses;
    }

    private static NDArray batch(NDManager manager, int seed, int part, int parts) {
        Random random = new Random(seed);
        float[] x = new float[2 * ROWS * LENGTH * WIDTH];
        for (int i = 0; i < x.length; i++) {
            x[i] = (float) random.nextGaussian();
        }
        NDArray whole = manager.create(x, new Shape(2 * ROWS, LENGTH, WIDTH));
        int rows = 2 * ROWS / parts;
        return whole.get(rows * part + ":" + rows * (part + 1));
    }

    private interface RankCode<T> {
        T run(ProcessGroup group) throws Exception;
    }

    /** Runs code on both ranks, after each has trained alone on its part. */
    private static <T> List<T> onTwoRanks(long bufferSize, RankCode<T> code) {
        CudaP2pOptions options =
                P2pRanks.options()
                        .optBufferSize(bufferSize)
                        .optCopyEngines(true)
                        .optTimeout(Duration.ofSeconds(15))
                        .build();
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", 2, options);
        CyclicBarrier alone = new CyclicBarrier(2);
        try {
            return ProcessGroups.run(
                    groups,
                    group -> {
                        AtomicReference<T> result = new AtomicReference<>();
                        P2pRanks.run(
                                group,
                                () -> {
                                    train(group.device(), config(), transformer(), 0, 2);
                                    CurrentStreams.await(group.device());
                                    try {
                                        alone.await(60, TimeUnit.SECONDS);
                                        result.set(code.run(group));
                                    } catch (RuntimeException e) {
                                        throw e;
                                    } catch (Exception e) {
                                        throw new IllegalStateException(e);
                                    }
                                });
                        return result.get();
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** A layer has 3.2 MB of parameters: with the small buffer, they take several rounds. */
    @ParameterizedTest
    @ValueSource(longs = {64 << 20, 1 << 20})
    void twoRanksTrainAsOne(long bufferSize) {
        List<Float> expected = train(Device.gpu(0), config(), transformer(), 0, 1);
        List<List<Float>> losses =
                onTwoRanks(
                        bufferSize,
                        group ->
                                train(
                                        group.device(),
                                        sharded(group),
                                        transformer(),
                                        group.rank(),
                                        2));
        assertTrue(expected.get(STEPS - 1) < expected.get(0), expected.toString());
        for (int step = 0; step < STEPS; step++) {
            double mean = (losses.get(0).get(step) + losses.get(1).get(step)) / 2.0;
            assertEquals(expected.get(step), mean, 1e-4, "step " + step + ", " + losses);
        }
    }

    /** Shards, gradients and Adam's means are on the CPU, where the ranks update them. */
    @Test
    void twoRanksOffloadToTheHost() {
        FullyShardPolicy policy = new FullyShardPolicy().optCpuOffload(true);
        List<Float> expected = train(Device.gpu(0), config(), transformer(), 0, 1);
        List<List<Float>> losses =
                onTwoRanks(
                        64 << 20,
                        group ->
                                train(
                                        group.device(),
                                        sharded(group),
                                        FullyShard.apply(
                                                transformer(),
                                                each -> each instanceof Layer,
                                                policy),
                                        group.rank(),
                                        2));
        for (int step = 0; step < STEPS; step++) {
            double mean = (losses.get(0).get(step) + losses.get(1).get(step)) / 2.0;
            assertEquals(expected.get(step), mean, 1e-4, "step " + step + ", " + losses);
        }
    }

    /**
     * Divided between two ranks, a layer takes half the memory, and a model a little more: buffers
     * and the layers that are gathered or reduced are not divided. Each strategy has a JVM of its
     * own: libtorch's allocator keeps what earlier tests had.
     */
    @Test
    void dividedLayersTakeHalfTheMemory() throws InterruptedException {
        long[] whole = bytesOf(ShardingStrategy.NO_SHARD);
        long[] divided = bytesOf(ShardingStrategy.FULL_SHARD);
        System.out.printf(
                "MiB a rank and layer: whole %d, divided %d; with %d layers %d and %d%n",
                whole[0] >> 21, divided[0] >> 21, Memory.LAYERS, whole[1] >> 21, divided[1] >> 21);
        assertTrue(divided[0] <= 0.52 * whole[0], divided[0] + " of " + whole[0]);
        assertTrue(divided[1] <= 0.6 * whole[1], divided[1] + " of " + whole[1]);
    }

    private static long[] bytesOf(ShardingStrategy strategy) throws InterruptedException {
        try (RankProcesses jvm = new RankProcesses(1, Memory.class, strategy.name())) {
            jvm.awaitSuccess();
            String output = jvm.output(0);
            String numbers = output.substring(output.lastIndexOf("bytes:") + "bytes:".length());
            return Arrays.stream(numbers.strip().split(" ")).mapToLong(Long::parseLong).toArray();
        }
    }

    /**
     * Prints what a layer of 64 MiB takes on the GPUs of two ranks that train: parameters,
     * gradients and Adam's means; and what {@value #LAYERS} layers take, with the group's buffers.
     * libtorch's allocator keeps the peak of the steps.
     */
    static final class Memory {

        static final int LAYERS = 24;
        private static final int FEW = 8;
        private static final int SIZE = 4096;

        private Memory() {}

        public static void main(String[] args) {
            train(ShardingStrategy.NO_SHARD, 2); // loads libraries and kernels
            JniUtils.emptyCudaCache();
            ShardingStrategy strategy = ShardingStrategy.valueOf(args[0]);
            long before = freeBytes();
            long few = train(strategy, FEW);
            long many = train(strategy, LAYERS);
            System.out.println("bytes: " + (few - many) / (LAYERS - FEW) + " " + (before - many));
        }

        /** Trains for three steps, and returns the free bytes of all GPUs then. */
        private static long train(ShardingStrategy strategy, int layers) {
            AtomicLong free = new AtomicLong();
            CyclicBarrier trained = new CyclicBarrier(2, () -> free.set(freeBytes()));
            onTwoRanks(
                    64 << 20,
                    group -> {
                        SequentialBlock block = new SequentialBlock();
                        for (int layer = 0; layer < layers; layer++) {
                            block.add(Linear.builder().setUnits(SIZE).build());
                        }
                        DataParallelConfig config = sharded(group);
                        config.optShardingStrategy(strategy);
                        config.optDevices(new Device[] {group.device()});
                        try (Model model =
                                Model.newInstance("memory", group.device(), P2pEngine.NAME)) {
                            model.setBlock(block);
                            try (Trainer trainer = model.newTrainer(config)) {
                                trainer.initialize(new Shape(1, SIZE));
                                CurrentStreams.await(group.device());
                                for (int step = 0; step < 3; step++) {
                                    step(trainer);
                                }
                                trained.await(60, TimeUnit.SECONDS);
                            }
                        }
                        return null;
                    });
            return free.get();
        }

        private static void step(Trainer trainer) {
            try (NDManager manager = trainer.getManager().newSubManager();
                    GradientCollector collector = trainer.newGradientCollector()) {
                NDArray x = manager.randomNormal(new Shape(ROWS, SIZE));
                NDArray y = trainer.forward(new NDList(x)).head();
                collector.backward(y.square().mean());
                trainer.step();
                CurrentStreams.await(manager.getDevice());
            }
        }

        private static long freeBytes() {
            long free = 0;
            for (int gpu = 0; gpu < CudaDevice.count(); gpu++) {
                try (CudaDevice device = CudaDevice.open(Device.gpu(gpu))) {
                    free += device.freeMemory();
                }
            }
            return free;
        }
    }

    /** The peer of a rank that fails gets an error, and does not wait for its timeout. */
    @Test
    void failureOfARankEndsItsPeer() {
        List<Throwable> errors = new ArrayList<>();
        CollectiveException failure =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                onTwoRanks(
                                        64 << 20,
                                        group -> {
                                            try {
                                                return trainUntilFailure(group);
                                            } catch (RuntimeException e) {
                                                if (group.rank() == 0) {
                                                    errors.add(e);
                                                }
                                                throw e;
                                            }
                                        }));
        assertFalse(failure instanceof CollectiveTimeoutException, failure.toString());
        Throwable error = errors.get(0);
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        assertInstanceOf(CollectiveException.class, error, trace::toString);
        assertFalse(error instanceof CollectiveTimeoutException, error.toString());
    }

    private static List<Float> trainUntilFailure(ProcessGroup group) {
        int[] calls = new int[1];
        SequentialBlock block = new SequentialBlock();
        block.add(
                new ParallelBlock(
                        lists -> {
                            if (group.rank() == 1 && ++calls[0] == 3) { // in the third step
                                throw new IllegalStateException("planned");
                            }
                            return lists.get(0);
                        },
                        List.<Block>of(new Layer())));
        block.addAll(transformer().getChildren().values());
        return train(group.device(), sharded(group), block, group.rank(), 2);
    }
}
