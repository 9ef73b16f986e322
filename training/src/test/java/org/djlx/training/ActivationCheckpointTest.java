// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.transformer.TransformerEncoderBlock;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.UnaryOperator;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.host.CHeap;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.precision.ActivationCheckpoint;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Blocks that the backward pass computes again, beside those that keep their graphs. */
@Timeout(120)
class ActivationCheckpointTest {

    private static final int FEATURES = 6;

    private interface Program {
        void run(DataParallelTrainer trainer) throws Exception;
    }

    /** Computes a linear layer and then a function of its output. */
    private static final class Layer extends AbstractBlock {

        private final Block linear =
                addChildBlock("linear", Linear.builder().setUnits(FEATURES).build());
        private final Dropout dropout;
        private final UnaryOperator<NDArray> last;
        private final AtomicInteger computed = new AtomicInteger();

        Layer(float rate, UnaryOperator<NDArray> last) {
            dropout = addChildBlock("dropout", Dropout.builder().optRate(rate).build());
            this.last = last;
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            computed.incrementAndGet();
            NDList y = dropout.forward(store, linear.forward(store, inputs, training), training);
            return new NDList(last.apply(y.head()));
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            linear.initialize(manager, type, shapes);
            dropout.initialize(manager, type, shapes);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    private static void train(DataParallelConfig config, Block block, Shape shape, Program program)
            throws Exception {
        config.optOptimizer(Training.optimizer("sgd"));
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("checkpointed", P2pEngine.NAME)) {
            model.setBlock(block);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(shape);
                program.run(trainer);
            }
        }
    }

    private static DataParallelConfig config(int ranks) {
        return new DataParallelConfig(Training.loss()).optRanks(ranks);
    }

    private static NDArray normal(NDManager manager, int seed, long... sizes) {
        Random random = new Random(seed);
        Shape shape = new Shape(sizes);
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return manager.create(values, shape);
    }

    private static List<float[]> parameters(DataParallelTrainer trainer) {
        List<float[]> values = new ArrayList<>();
        for (LocalParameter own : trainer.replicas().get(0).parameters()) {
            values.add(NoGradient.get(() -> own.array().toFloatArray()));
        }
        return values;
    }

    /** Layers with all kinds of parameters: attention, layer and batch normalisation. */
    private static SequentialBlock layers(String kind, boolean wrapped) {
        SequentialBlock block = new SequentialBlock();
        for (int i = 0; i < 3; i++) {
            Block layer =
                    switch (kind) {
                        case "norm" ->
                                new SequentialBlock()
                                        .add(Linear.builder().setUnits(FEATURES).build())
                                        .add(BatchNorm.builder().build())
                                        .add(Activation::tanh);
                        default -> new TransformerEncoderBlock(FEATURES, 2, 8, 0, Activation::relu);
                    };
            block.add(wrapped ? ActivationCheckpoint.wrap(layer) : layer);
        }
        return block;
    }

    private static List<float[]> trained(String kind, boolean wrapped, DataParallelConfig config)
            throws Exception {
        long[] sizes = kind.equals("norm") ? new long[] {7, FEATURES} : new long[] {7, 3, FEATURES};
        List<float[]> results = new ArrayList<>();
        train(
                config,
                layers(kind, wrapped),
                new Shape(sizes),
                trainer -> {
                    for (int step = 0; step < 3; step++) {
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDArray x = normal(trainer.getManager(), step, sizes);
                            NDArray y = trainer.forward(new NDList(x)).head();
                            NDArray loss = y.square().mean();
                            results.add(new float[] {loss.getFloat()});
                            collector.backward(loss);
                        }
                        trainer.step();
                    }
                    results.addAll(parameters(trainer));
                });
        return results;
    }

    @ParameterizedTest
    @CsvSource({
        "norm, 1, NONE",
        "norm, 2, NONE",
        "norm, 4, NONE",
        "norm, 2, BFLOAT16",
        "encoder, 1, NONE",
        "encoder, 2, NONE",
        "encoder, 1, FLOAT16"
    })
    void trainsAsTheUnwrappedBlock(String kind, int ranks, MixedPrecisionPolicy policy)
            throws Exception {
        List<float[]> expected = trained(kind, false, config(ranks).optMixedPrecision(policy));
        List<float[]> actual = trained(kind, true, config(ranks).optMixedPrecision(policy));
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            // Gradients of an input that is used several times are added in another order.
            float tolerance = kind.equals("norm") ? 0 : 1e-6f;
            for (int k = 0; k < expected.get(i).length; k++) {
                assertEquals(expected.get(i)[k], actual.get(i)[k], tolerance, "result " + i);
            }
        }
    }

    /** Runs passes of a layer with dropout, and compares gradients with the dropout of y. */
    private static void assertGradientsAreOfTheDropoutThatWasPredicted(
            DataParallelConfig config, Layer layer, Block block) throws Exception {
        train(
                config.optCheckForward(false),
                block,
                new Shape(8, FEATURES),
                trainer -> {
                    for (int step = 0; step < 3; step++) {
                        trainer.zeroGradients();
                        NDArray x = normal(trainer.getManager(), step, 8, FEATURES);
                        float[] y;
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDArray predicted = trainer.forward(new NDList(x)).head();
                            y = predicted.toFloatArray();
                            collector.backward(predicted.sum());
                        }
                        float[] bias = new float[FEATURES];
                        int dropped = 0;
                        for (int i = 0; i < y.length; i++) {
                            bias[i % FEATURES] += y[i] == 0 ? 0 : 2; // 1 / (1 - 0.5)
                            dropped += y[i] == 0 ? 1 : 0;
                        }
                        assertTrue(dropped > 0 && dropped < y.length);
                        NDArray parameter = layer.linear.getParameters().get("bias").getArray();
                        assertArrayEquals(bias, parameter.getGradient().toFloatArray());
                    }
                });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void recomputedDropoutDrawsTheSameNumbers(int ranks) throws Exception {
        Layer layer = new Layer(0.5f, y -> y);
        Block block = new SequentialBlock().add(ActivationCheckpoint.wrap(layer));
        assertGradientsAreOfTheDropoutThatWasPredicted(config(ranks), layer, block);
        // One rank: two trials, and each pass twice. Two ranks share a generator: no trial, once.
        assertEquals(ranks == 1 ? 2 + 3 * 2 : 3 * 2, layer.computed.get());
    }

    /** One of two processes that fully shard two layers with dropout, and train one step. */
    public static final class Sharded {

        private Sharded() {}

        /**
         * Prints the gradient of the last layer's bias, from the dropout of the prediction, and the
         * bias after a step.
         */
        public static void main(String[] args) throws Exception {
            DataParallelConfig config = new DataParallelConfig(Training.loss());
            config.optShardingStrategy(ShardingStrategy.FULL_SHARD);
            Layer first = new Layer(0.5f, y -> y);
            Layer last = new Layer(0.5f, y -> y);
            config.optOptimizer(Training.optimizer("sgd"));
            try (Model model = Model.newInstance("sharded", P2pEngine.NAME)) {
                SequentialBlock block = new SequentialBlock().add(first).add(last);
                block.setInitializer(Initializer.ONES, Parameter.Type.BIAS); // y is 0 if dropped
                model.setBlock(block);
                try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                    trainer.initialize(new Shape(8, FEATURES));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray x = normal(trainer.getManager(), 1, 8, FEATURES);
                        NDArray predicted = trainer.forward(new NDList(x)).head();
                        System.out.println("gradient " + ofBias(predicted.toFloatArray()));
                        collector.backward(predicted.sum());
                    }
                    trainer.step();
                    System.out.println("computed " + last.computed.get());
                }
                NDArray bias = last.linear.getParameters().get("bias").getArray();
                System.out.println("bias " + floats(NoGradient.get(bias::toFloatArray)));
            }
        }

        private static List<Float> ofBias(float[] y) {
            float[] bias = new float[FEATURES];
            for (int i = 0; i < y.length; i++) {
                bias[i % FEATURES] += y[i] == 0 ? 0 : 2; // 1 / (1 - 0.5)
            }
            return floats(bias);
        }

        private static List<Float> floats(float[] values) {
            List<Float> list = new ArrayList<>();
            for (float value : values) {
                list.add(value);
            }
            return list;
        }
    }

    private static float[] line(String output, String name) {
        String text = output.lines().filter(line -> line.startsWith(name + " ")).findFirst().get();
        String[] words = text.substring(name.length() + 1).replaceAll("[\\[\\] ]", "").split(",");
        float[] values = new float[words.length];
        for (int i = 0; i < values.length; i++) {
            values[i] = Float.parseFloat(words[i]);
        }
        return values;
    }

    @Test
    @Tag("slow")
    void fullyShardedProcessesKeepDropout() throws Exception {
        try (RankProcesses processes = new RankProcesses(2, Sharded.class)) {
            processes.awaitSuccess();
            float[] one = line(processes.output(0), "gradient");
            float[] two = line(processes.output(1), "gradient");
            float[] expected = new float[FEATURES]; // the bias begins at 1; the rate is 0.05
            for (int k = 0; k < FEATURES; k++) {
                expected[k] = 1 - 0.05f * (one[k] + two[k]) / 2;
            }
            for (int rank = 0; rank < 2; rank++) {
                String output = processes.output(rank);
                assertArrayEquals(expected, line(output, "bias"), 1e-6f, output);
                assertEquals(1, line(output, "computed")[0], output);
            }
        }
    }

    /** Random numbers go on after the backward pass as they would: they are not drawn again. */
    @Test
    void passesDrawDifferentNumbers() throws Exception {
        Layer layer = new Layer(0.5f, y -> y);
        Block block = new SequentialBlock().add(ActivationCheckpoint.wrap(layer));
        List<float[]> predicted = new ArrayList<>();
        train(
                config(1),
                block,
                new Shape(8, FEATURES),
                trainer -> {
                    for (int pass = 0; pass < 2; pass++) {
                        NDArray x = normal(trainer.getManager(), 1, 8, FEATURES);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDArray y = trainer.forward(new NDList(x)).head();
                            predicted.add(y.toFloatArray());
                            collector.backward(y.sum());
                        }
                    }
                });
        int same = 0;
        for (int i = 0; i < predicted.get(0).length; i++) {
            same += predicted.get(0)[i] == predicted.get(1)[i] ? 1 : 0;
        }
        assertTrue(same < predicted.get(0).length, "" + same);
    }

    /** A block that does not repeat itself is found in the first pass, or in the backward pass. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void backwardRejectsDifferentPredictions(boolean always) throws Exception {
        AtomicInteger calls = new AtomicInteger();
        UnaryOperator<NDArray> last =
                y -> y.mul(1 + (always ? 1 : 0) * calls.get() + calls.getAndIncrement() / 3);
        Layer layer = new Layer(0.5f, last);
        Block block = new SequentialBlock().add(ActivationCheckpoint.wrap(layer));
        train(
                config(1),
                block,
                new Shape(8, FEATURES),
                trainer -> {
                    NDArray x = normal(trainer.getManager(), 1, 8, FEATURES);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray y = trainer.forward(new NDList(x)).head();
                        if (always) {
                            collector.backward(y.sum()); // with the graph
                            assertEquals(3, layer.computed.get());
                            return;
                        }
                        IllegalStateException e =
                                assertThrows(
                                        IllegalStateException.class,
                                        () -> collector.backward(y.sum()));
                        assertTrue(e.getMessage().contains("random numbers"), e.getMessage());
                    }
                });
    }

    @Test
    void evaluationAndFrozenBlocksComputeOnce() throws Exception {
        Layer layer = new Layer(0, y -> y);
        Block block = new SequentialBlock().add(ActivationCheckpoint.wrap(layer));
        train(
                config(1),
                block,
                new Shape(8, FEATURES),
                trainer -> {
                    NDArray x = normal(trainer.getManager(), 1, 8, FEATURES);
                    trainer.evaluate(new NDList(x));
                    assertEquals(1, layer.computed.get());
                    block.freezeParameters(true);
                    GradientCollector collector = trainer.newGradientCollector();
                    trainer.forward(new NDList(x));
                    collector.close();
                    assertEquals(2, layer.computed.get());
                });
    }

    /** Returns the greatest number of bytes allocated in three steps of a 12-layer model. */
    private static long peak(boolean wrapped) throws Exception {
        AtomicLong peak = new AtomicLong();
        Runnable sample = () -> peak.accumulateAndGet(CHeap.bytesInUse(), Math::max);
        SequentialBlock block = new SequentialBlock();
        for (int i = 0; i < 12; i++) {
            Block layer =
                    new SequentialBlock()
                            .add(new TransformerEncoderBlock(64, 4, 256, 0.1f, Activation::relu))
                            .add(
                                    arrays -> {
                                        sample.run(); // also when it is computed again
                                        return arrays;
                                    });
            block.add(wrapped ? ActivationCheckpoint.wrap(layer) : layer);
        }
        long[] before = new long[1];
        train(
                config(1),
                block,
                new Shape(8, 64, 64),
                trainer -> {
                    before[0] = CHeap.bytesInUse();
                    for (int step = 0; step < 3; step++) {
                        try (NDManager manager = trainer.getManager().newSubManager();
                                GradientCollector collector = trainer.newGradientCollector()) {
                            NDArray x = normal(manager, step, 8, 64, 64);
                            collector.backward(trainer.forward(new NDList(x)).head().mean());
                            sample.run();
                        }
                        trainer.step();
                    }
                });
        return peak.get() - before[0];
    }

    /** A wrapped model keeps one layer's intermediate arrays, and the inputs of 12. */
    @Test
    void twelveLayersTakeTheMemoryOfOne() throws Exception {
        peak(true); // Loads classes and kernels.
        // The JVM's compilers take up to 20 MB meanwhile, but not each time.
        List<Long> plain = new ArrayList<>();
        List<Long> wrapped = new ArrayList<>();
        do {
            plain.add(peak(false));
            wrapped.add(peak(true));
        } while (plain.size() < 5 && Collections.min(wrapped) >= 0.3 * Collections.min(plain));
        assertTrue(
                Collections.min(wrapped) < 0.3 * Collections.min(plain),
                () -> wrapped + " of " + plain);
    }

    @Test
    void wrapRejectsNull() {
        assertThrows(IllegalArgumentException.class, () -> ActivationCheckpoint.wrap(null));
    }
}
