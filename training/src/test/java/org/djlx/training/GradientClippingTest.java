// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Clipping, accumulation without communication, and unused parameters, under DDP's names. */
class GradientClippingTest {

    private static final int ROWS = 8;
    private static final int FEATURES = 3;
    private static final float RATE = 0.05f;
    private static final double TOLERANCE = 1e-5;

    private static float[] batch(int step) {
        Random random = new Random(step);
        float[] x = new float[ROWS * FEATURES];
        for (int i = 0; i < x.length; i++) {
            x[i] = (float) random.nextGaussian();
        }
        return x;
    }

    /** {@code y = x w}, with the loss sum(y^2), in float64. */
    private static final class Reference {

        private final double[] weights = {0.5, -1, 2};
        private final double[] gradient = new double[FEATURES];

        void backward(float[] x) {
            for (int row = 0; row < x.length / FEATURES; row++) {
                double y = 0;
                for (int k = 0; k < FEATURES; k++) {
                    y += x[row * FEATURES + k] * weights[k];
                }
                for (int k = 0; k < FEATURES; k++) {
                    gradient[k] += 2 * y * x[row * FEATURES + k];
                }
            }
        }

        double clipNorm(double limit) {
            double norm = Math.sqrt(Arrays.stream(gradient).map(g -> g * g).sum());
            double factor = Math.min(1, limit / (norm + 1e-6));
            Arrays.setAll(gradient, k -> gradient[k] * factor);
            return norm;
        }

        void clipValue(double limit) {
            Arrays.setAll(gradient, k -> Math.max(-limit, Math.min(limit, gradient[k])));
        }

        void step() {
            Arrays.setAll(weights, k -> weights[k] - RATE * gradient[k]);
            Arrays.fill(gradient, 0);
        }
    }

    private interface Program {
        void run(DataParallelTrainer trainer, Parameter weight) throws Exception;
    }

    private static void train(DataParallelConfig config, Program program) {
        config.optOptimizer(Training.optimizer("sgd"));
        Block linear = Linear.builder().setUnits(1).optBias(false).build();
        linear.setInitializer(
                (manager, shape, type) -> manager.create(new float[] {0.5f, -1, 2}, shape),
                Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("clip", P2pEngine.NAME)) {
            model.setBlock(new SequentialBlock().add(linear));
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, FEATURES));
                program.run(trainer, linear.getParameters().valueAt(0));
            } catch (RuntimeException e) {
                throw e;
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
    }

    private static void backward(DataParallelTrainer trainer, float[] x) {
        backward(trainer, x, FEATURES);
    }

    private static void backward(DataParallelTrainer trainer, float[] x, int features) {
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDArray batch = manager.create(x, new Shape(x.length / features, features));
            collector.backward(trainer.forward(new NDList(batch)).head().square().sum());
        }
    }

    private static void assertWeights(Reference reference, Parameter weight) {
        float[] values = NoGradient.get(() -> weight.getArray().toFloatArray());
        for (int k = 0; k < FEATURES; k++) {
            assertEquals(reference.weights[k], values[k], TOLERANCE);
        }
    }

    /** Multiplies one input by the first weight, or the first of two by the second weight. */
    private static final class Heads extends AbstractBlock {

        private final Parameter[] weights = new Parameter[2];

        Heads() {
            for (int i = 0; i < 2; i++) {
                weights[i] =
                        addParameter(
                                Parameter.builder()
                                        .setName("weight" + i)
                                        .setType(Parameter.Type.WEIGHT)
                                        .optShape(new Shape(1))
                                        .optInitializer(new ConstantInitializer(1))
                                        .build());
            }
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> parameters) {
            NDArray x = inputs.head();
            Parameter weight = weights[inputs.size() - 1];
            return new NDList(x.mul(store.getValue(weight, x.getDevice(), training)));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputs) {
            return new Shape[] {inputs[0]};
        }
    }

    /** A pass after the clipping, to a parameter that had no gradient then, counts. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void backwardAfterClippingCounts(int ranks) {
        Heads heads = new Heads();
        DataParallelConfig config = new DataParallelConfig(Training.loss()).optRanks(ranks);
        config.optOptimizer(Training.optimizer("sgd"));
        try (Model model = Model.newInstance("heads", P2pEngine.NAME)) {
            model.setBlock(heads);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 1));
                for (int inputs = 1; inputs <= 2; inputs++) {
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList list = new NDList();
                        for (int i = 0; i < inputs; i++) {
                            list.add(trainer.getManager().ones(new Shape(4, 1)));
                        }
                        collector.backward(trainer.forward(list).head().sum());
                    }
                    trainer.clipGradNorm(1e9);
                }
                trainer.step();
                for (Parameter weight : heads.weights) {
                    float value = NoGradient.get(() -> weight.getArray().toFloatArray()[0]);
                    assertEquals(1 - 4 * RATE, value, TOLERANCE, weight.getName());
                }
            }
        }
    }

    private static float gradient(Parameter parameter) {
        return NoGradient.get(() -> parameter.getArray().getGradient().toFloatArray()[0]);
    }

    /** As of one device, a gradient that is read after a pass behind a clipping is the sum. */
    @ParameterizedTest
    @CsvSource({"1, 1048576", "2, 1048576", "2, 1"})
    void backwardAfterClippingAddsToClippedGradients(int ranks, long bucketBytes) {
        Heads heads = new Heads();
        DataParallelConfig config = new DataParallelConfig(Training.loss()).optRanks(ranks);
        config.optBucketBytes(bucketBytes).optOptimizer(Training.optimizer("sgd"));
        try (Model model = Model.newInstance("heads", P2pEngine.NAME)) {
            model.setBlock(heads);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 1));
                NDList input = new NDList(trainer.getManager().ones(new Shape(4, 1)));
                for (int pass = 0; pass < 2; pass++) {
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        collector.backward(trainer.forward(input).head().sum());
                    }
                    assertEquals(pass == 0 ? 4 : 6, gradient(heads.weights[0]), TOLERANCE);
                    trainer.clipGradValue(2);
                }
                trainer.step();
            }
            float value = NoGradient.get(() -> heads.weights[0].getArray().toFloatArray()[0]);
            assertEquals(1 - 2 * RATE, value, TOLERANCE);
        }
    }

    /** The norm is that of the whole batch, also of several passes, and clips what is above. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void clipGradNormEqualsOneDevice(int ranks) {
        Reference reference = new Reference();
        train(
                new DataParallelConfig(Training.loss()).optRanks(ranks),
                (trainer, weight) -> {
                    double[] limits = {0.3, 1e9, 0.1};
                    for (int step = 0; step < limits.length; step++) {
                        for (int pass = 0; pass <= step; pass++) {
                            backward(trainer, batch(step + 10 * pass));
                            reference.backward(batch(step + 10 * pass));
                        }
                        double expected = reference.clipNorm(limits[step]);
                        double norm = trainer.clipGradNorm(limits[step]);
                        assertEquals(expected, norm, expected * TOLERANCE);
                        double clipped = Math.min(limits[step], expected);
                        // Clipping again finds what the first call has left.
                        assertEquals(clipped, trainer.clipGradNorm(1e9), clipped * TOLERANCE);
                        trainer.step();
                        reference.step();
                        assertWeights(reference, weight);
                    }
                });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void clipGradValueLimitsReducedGradients(int ranks) {
        Reference reference = new Reference();
        train(
                new DataParallelConfig(Training.loss()).optRanks(ranks),
                (trainer, weight) -> {
                    backward(trainer, batch(1));
                    reference.backward(batch(1));
                    double limit = Math.abs(reference.gradient[1]) + 1e-3;
                    assertTrue(
                            Arrays.stream(reference.gradient).anyMatch(g -> Math.abs(g) > limit));
                    trainer.clipGradValue(limit);
                    reference.clipValue(limit);
                    trainer.step();
                    reference.step();
                    assertWeights(reference, weight);
                });
    }

    @Test
    void clippingRejectsLimitsThatAreNotPositive() {
        train(
                new DataParallelConfig(Training.loss()),
                (trainer, weight) -> {
                    for (double limit : new double[] {0, -1, Double.NaN}) {
                        assertThrows(
                                IllegalArgumentException.class, () -> trainer.clipGradNorm(limit));
                        assertThrows(
                                IllegalArgumentException.class, () -> trainer.clipGradValue(limit));
                    }
                });
    }

    /** The weights after a step, and how many reductions it has taken. */
    private record Accumulated(float[] weights, long reductions) {}

    /** Accumulating three batches sends as much as one batch, and has the result of three. */
    @Test
    void noSyncReducesGradientsOfSeveralPassesOnce() {
        Accumulated one = accumulate(1, false);
        Accumulated three = accumulate(3, false);
        Accumulated accumulated = accumulate(3, true);
        assertEquals(one.reductions, accumulated.reductions);
        assertTrue(accumulated.reductions < three.reductions);
        assertArrayEquals(three.weights, accumulated.weights, 1e-5f);
        assertFalse(Arrays.equals(one.weights, accumulated.weights));
    }

    private static Accumulated accumulate(int batches, boolean noSync) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            return ProcessGroups.run(groups, group -> accumulate(group, batches, noSync)).get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static Accumulated accumulate(ProcessGroup group, int batches, boolean noSync) {
        DataParallelConfig config =
                new DataParallelConfig(Training.loss())
                        .optBucketBytes(1)
                        .optGradientReduction(GradientReduction.MEAN)
                        .optProcessGroup(group);
        config.optOptimizer(Training.optimizer("sgd"));
        SequentialBlock block = Training.block(); // Its last layer is reduced in the backward pass.
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("accumulate", P2pEngine.NAME)) {
            model.setBlock(block);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                long before = reductions(group);
                DataParallelTrainer.NoSync accumulating = noSync ? trainer.noSync() : () -> {};
                if (noSync) {
                    trainer.noSync().close(); // An inner one does not end the outer one.
                }
                for (int batch = 0; batch < batches; batch++) {
                    if (batch == batches - 1) {
                        accumulating.close();
                    }
                    float[] x = batch(batch + 100 * group.rank());
                    backward(trainer, x, Training.FEATURES);
                }
                trainer.step();
                long count = reductions(group) - before;
                NDArray weight = block.getParameters().valueAt(2).getArray();
                return new Accumulated(NoGradient.get(weight::toFloatArray), count);
            }
        }
    }

    private static long reductions(ProcessGroup group) {
        return group.flightRecorder().dump().entries().stream()
                .filter(entry -> entry.call().startsWith("allReduce"))
                .count();
    }

    /** A parameter that one rank has not used gets the other rank's gradient. */
    @Test
    void synchronizerCountsUnusedParametersAsZero() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        Block linear = Linear.builder().setUnits(1).build();
                        linear.setInitializer(Initializer.ONES, Parameter.Type.WEIGHT);
                        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                                GradientScope scope = GradientScope.open()) {
                            linear.initialize(manager, DataType.FLOAT32, new Shape(1, FEATURES));
                            NDArray weight = linear.getParameters().get("weight").getArray();
                            NDArray bias = linear.getParameters().get("bias").getArray();
                            NDArray x = manager.ones(new Shape(1, FEATURES));
                            ParameterStore store = new ParameterStore(manager, false);
                            NDArray loss =
                                    group.rank() == 0
                                            ? linear.forward(store, new NDList(x), true)
                                                    .head()
                                                    .sum()
                                            : bias.mul(bias).sum().add(bias.sum());
                            scope.backward(loss);
                            new GradientSynchronizer(group, GradientReduction.SUM)
                                    .synchronize(linear);
                            assertArrayEquals(
                                    new float[] {1, 1, 1}, weight.getGradient().toFloatArray());
                            assertArrayEquals(new float[] {2}, bias.getGradient().toFloatArray());
                            linear.clear();
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
