// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.BaseNDManager;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.precision.ActivationCheckpoint;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Blocks of one or two parameters, of which the ranks of a JVM have copies or the same memory. */
class SmallModelTest {

    private static final int ROWS = 6; // of a batch, of ones
    private static final float RATE = 0.05f;

    /** Computes with parameters {@code a} and {@code b} of 6 elements, which begin with zeros. */
    private abstract static class TwoBiases extends AbstractBlock {

        final Parameter first;
        final Parameter second;

        TwoBiases(Parameter.Type secondType) {
            first = addParameter(bias("a", Parameter.Type.BIAS));
            second = addParameter(bias("b", secondType));
        }

        private static Parameter bias(String name, Parameter.Type type) {
            return Parameter.builder()
                    .setName(name)
                    .setType(type)
                    .optRequiresGrad(type != Parameter.Type.OTHER)
                    .optShape(new Shape(6))
                    .optInitializer(Initializer.ZEROS)
                    .build();
        }

        abstract NDArray compute(NDArray x, NDArray a, NDArray b, boolean training);

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = inputs.head();
            NDArray a = store.getValue(first, x.getDevice(), training);
            NDArray b = store.getValue(second, x.getDevice(), training);
            return new NDList(compute(x, a, b, training));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputs) {
            return inputs;
        }
    }

    /** Counts the training passes in {@code b}. */
    private static final class Counting extends TwoBiases {

        Counting() {
            super(Parameter.Type.OTHER);
        }

        @Override
        NDArray compute(NDArray x, NDArray a, NDArray b, boolean training) {
            if (training) {
                NoGradient.run(() -> b.addi(1));
            }
            return x.add(a);
        }
    }

    /** Adds both, so that libtorch gives their gradients the same memory. */
    private static final class Adding extends TwoBiases {

        Adding() {
            super(Parameter.Type.BIAS);
        }

        @Override
        NDArray compute(NDArray x, NDArray a, NDArray b, boolean training) {
            return x.add(a.reshape(1, 6).add(b.reshape(1, 6)));
        }
    }

    /** Fails on the second rank. */
    private static final class Failing extends TwoBiases {

        Failing() {
            super(Parameter.Type.BIAS);
        }

        @Override
        NDArray compute(NDArray x, NDArray a, NDArray b, boolean training) {
            if (Thread.currentThread().getName().contains("trainer-rank-1")) {
                throw new IllegalStateException("out of memory");
            }
            return x.add(a).add(b);
        }
    }

    private interface Body {
        void run(DataParallelTrainer trainer);
    }

    /** Returns the first values of both parameters after training. */
    private static List<Float> train(AbstractBlock block, int ranks, long bucketBytes, Body body) {
        DataParallelConfig config = new DataParallelConfig(Training.loss()).optRanks(ranks);
        config.optBucketBytes(bucketBytes).optTimeout(Duration.ofMinutes(10));
        config.optOptimizer(Training.optimizer("sgd"));
        try (Model model = Model.newInstance("small", P2pEngine.NAME)) {
            model.setBlock(block);
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 6));
                body.run(trainer);
            }
            return block.getParameters().values().stream().map(SmallModelTest::value).toList();
        }
    }

    private static void step(DataParallelTrainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDList input = new NDList(manager.ones(new Shape(ROWS, 6)));
            collector.backward(trainer.forward(input).head().sum());
            trainer.step();
        }
    }

    private static float value(Parameter parameter) {
        return NoGradient.get(() -> parameter.getArray().toFloatArray()[0]);
    }

    /** An array without gradient to which passes write is that of one device, as statistics are. */
    @ParameterizedTest
    @CsvSource({"1, 1048576", "2, 1048576", "3, 1048576", "2, 1"})
    void arraysThatPassesWriteToEqualOneDevice(int ranks, long bucketBytes) {
        Body body =
                trainer -> {
                    for (int i = 0; i < 20; i++) {
                        step(trainer);
                    }
                };
        List<Float> values = train(new Counting(), ranks, bucketBytes, body);
        assertEquals(-20 * RATE * ROWS, values.get(0), 1e-4f);
        assertEquals(20, values.get(1));
    }

    /** DJL's engine would update {@code a} by 0, and {@code b} by its gradient twice or more. */
    @ParameterizedTest
    @CsvSource({"1, 1048576", "2, 1048576", "3, 1048576", "2, 1"})
    void stepRejectsGradientsThatShareMemory(int ranks, long bucketBytes) {
        Body body =
                trainer -> {
                    RuntimeException e = assertThrows(RuntimeException.class, () -> step(trainer));
                    String message = e.getMessage();
                    assertTrue(
                            message.contains("share memory") || message.contains("overlap"),
                            message);
                };
        assertEquals(List.of(0f, 0f), train(new Adding(), ranks, bucketBytes, body));
    }

    /** Ranks have views of a parameter whose memory the program replaces. */
    @Test
    void replacingParametersClosesOldViews() {
        Counting block = new Counting();
        train(
                block,
                2,
                1 << 20,
                trainer -> {
                    BaseNDManager manager = (BaseNDManager) trainer.replicas().get(1).manager();
                    NDList input = new NDList(trainer.getManager().ones(new Shape(ROWS, 6)));
                    trainer.evaluate(input);
                    int before = manager.getManagedArrays().size();
                    for (int i = 1; i <= 20; i++) {
                        block.first.getArray().set(new float[] {i, i, i, i, i, i});
                        assertEquals(1 + i, trainer.evaluate(input).head().get(5, 0).getFloat());
                    }
                    assertEquals(before, manager.getManagedArrays().size());
                });
    }

    /** Ranks agree in the first pass of an activation checkpoint; none waits for a failed one. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    @Timeout(120)
    void failureInTheFirstPassIsThrown(boolean checkpoint) {
        Failing failing = new Failing();
        AbstractBlock block = checkpoint ? ActivationCheckpoint.wrap(failing) : failing;
        train(
                block,
                2,
                1 << 20,
                trainer -> {
                    RuntimeException e = assertThrows(RuntimeException.class, () -> step(trainer));
                    assertTrue(e.getMessage().contains("out of memory"), e.getMessage());
                });
    }
}
