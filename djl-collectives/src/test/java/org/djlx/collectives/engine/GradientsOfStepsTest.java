/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.optimizer.Optimizer;
import org.djlx.nativeops.NoGradient;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What becomes of gradients between passes and steps, whatever a program does in between. */
class GradientsOfStepsTest {

    private static final int ROWS = 6; // of a batch, of ones

    /** Goes forward and back with a trainer. */
    private static final class Passes {

        private final Trainer trainer;
        private final NDList input;

        Passes(Trainer trainer, DataType type) {
            this.trainer = trainer;
            NDArray ones = trainer.getManager().ones(new Shape(ROWS, 6));
            input = new NDList(ones.toType(type, true));
        }

        void pass() {
            try (GradientCollector collector = trainer.newGradientCollector()) {
                collector.backward(trainer.forward(input).head().sum());
            }
        }

        void passAndStep() {
            pass();
            trainer.step();
        }
    }

    private interface Body {
        void run(Passes passes, SequentialBlock block);
    }

    private static void train(
            int ranks, SequentialBlock block, Optimizer optimizer, DataType type, Body body) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optRanks(ranks).optBucketBytes(1).optOptimizer(optimizer);
        block.setInitializer(Initializer.ONES, Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("model", P2pEngine.NAME)) {
            model.setBlock(block);
            model.setDataType(type);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 6));
                body.run(new Passes(trainer, type), block);
            }
        }
    }

    private static void train(int ranks, Body body) {
        train(ranks, Training.block(), Training.optimizer("sgd"), DataType.FLOAT32, body);
    }

    private static Parameter bias(SequentialBlock block) {
        return block.getChildren().valueAt(2).getParameters().valueAt(1);
    }

    private static float first(Parameter parameter) {
        return NoGradient.get(() -> parameter.getArray().toFloatArray()[0]);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3})
    void frozenBetweenBackwardAndStep(int ranks) {
        train(
                ranks,
                (passes, block) -> {
                    passes.passAndStep();
                    Parameter bias = bias(block);
                    passes.pass();
                    bias.freeze(true);
                    passes.trainer.step();
                    float before = first(bias);
                    passes.passAndStep();
                    assertEquals(before, first(bias));
                    bias.freeze(false);
                    passes.passAndStep();
                    // Gradients of passes while it was frozen, and before, are forgotten.
                    assertEquals(before - 0.05f * ROWS, first(bias), 1e-5f);
                });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3})
    void frozenBetweenTwoPasses(int ranks) {
        train(
                ranks,
                (passes, block) -> {
                    passes.pass();
                    bias(block).freeze(true);
                    passes.passAndStep();
                    passes.passAndStep();
                });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void unfrozenBetweenBackwardAndStep(int ranks) {
        train(
                ranks,
                (passes, block) -> {
                    Parameter bias = bias(block);
                    bias.freeze(true);
                    passes.passAndStep();
                    passes.pass();
                    bias.freeze(false);
                    passes.trainer.step();
                    float before = first(bias);
                    passes.passAndStep();
                    assertEquals(before - 0.05f * ROWS, first(bias), 1e-5f);
                });
    }

    /** Both have one array, and so one gradient, which is the sum. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void parametersThatShareAnArray(int ranks) {
        Linear one = Linear.builder().setUnits(6).optBias(false).build();
        Linear two = Linear.builder().setUnits(6).optBias(false).build();
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.ones(new Shape(6, 6));
            one.getParameters().valueAt(0).setArray(array);
            two.getParameters().valueAt(0).setArray(array);
            train(
                    ranks,
                    new SequentialBlock().add(one).add(two),
                    Training.optimizer("sgd"),
                    DataType.FLOAT32,
                    (passes, block) -> {
                        // Through either layer 36 for each row: 6 x 6 ones.
                        float step = 0.05f * ROWS * (6 + 6);
                        passes.passAndStep();
                        assertEquals(1 - step, first(one.getParameters().valueAt(0)), 1e-4f);
                        assertEquals(1 - step, first(two.getParameters().valueAt(0)), 1e-4f);
                    });
        }
    }

    @Test
    void gradientsThatAreHeldOverAStep() {
        train(
                2,
                (passes, block) -> {
                    NDArray bias = bias(block).getArray();
                    passes.pass();
                    try (NDArray held = bias.getGradient()) {
                        passes.trainer.step();
                        assertArrayEquals(new float[(int) held.size()], held.toFloatArray());
                        passes.pass();
                        try (NDArray now = bias.getGradient()) {
                            assertArrayEquals(now.toFloatArray(), held.toFloatArray());
                        }
                    }
                });
    }

    @Test
    void gradientsKeepTheirType() {
        train(
                1,
                Training.block(),
                Training.optimizer("sgd"),
                DataType.FLOAT64,
                (passes, block) -> {
                    NDArray bias = bias(block).getArray();
                    passes.passAndStep();
                    try (NDArray gradient = bias.getGradient()) {
                        assertEquals(DataType.FLOAT64, gradient.getDataType());
                    }
                });
    }
}
