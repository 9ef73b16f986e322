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
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.BatchSampler;
import ai.djl.training.dataset.SequenceSampler;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.trace.FlightEntry;
import org.djlx.training.Training.Outcome;
import org.djlx.training.strategy.GradientCompression;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class GradientCompressionTest {

    private static final int SIZE = 1000;
    private static final float UNIT_ROUNDOFF = 0x1p-8f; // of bfloat16: 8 bits of precision

    /** Rounds to bfloat16, to nearest and ties to even. */
    private static float round(float value) {
        int bits = Float.floatToRawIntBits(value);
        bits += 0x7fff + (bits >>> 16 & 1);
        return Float.intBitsToFloat(bits & 0xffff0000);
    }

    /** A rank's gradient. Ranks' are of one size, so that they can cancel out. */
    private static float[] gradient(int rank) {
        Random random = new Random(rank);
        float[] values = new float[SIZE];
        for (int i = 0; i < SIZE; i++) {
            values[i] = (float) (random.nextGaussian() * Math.pow(10, i % 9 - 4));
        }
        return values;
    }

    /** Goes down once, at a rate of 1 from 0, on a loss whose gradient is a rank's own. */
    private static float[] step(ProcessGroup group, DataParallelConfig config) {
        config.optProcessGroup(group);
        config.optOptimizer(Optimizer.sgd().setLearningRateTracker(Tracker.fixed(1)).build());
        SequentialBlock block =
                new SequentialBlock().add(Linear.builder().setUnits(1).optBias(false).build());
        block.setInitializer(Initializer.ZEROS, Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("step", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, SIZE));
                NDArray x = trainer.getManager().create(gradient(group.rank()), new Shape(1, SIZE));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    collector.backward(trainer.forward(new NDList(x)).head().sum());
                }
                trainer.step();
            }
            float[] weights = block.getParameters().valueAt(0).getArray().toFloatArray();
            for (int i = 0; i < SIZE; i++) {
                weights[i] = 0 - weights[i]; // and no negative zero
            }
            return weights;
        }
    }

    @ParameterizedTest
    @CsvSource({"2, SUM", "3, SUM", "8, SUM", "2, MEAN"})
    void bfloat16RoundsInputsAndResult(int ranks, GradientReduction reduction) {
        float[] exact = new float[SIZE];
        float[] bound = new float[SIZE];
        float[] rounded = new float[SIZE];
        float divisor = reduction == GradientReduction.MEAN ? ranks : 1;
        for (int rank = 0; rank < ranks; rank++) {
            float[] own = gradient(rank);
            for (int i = 0; i < SIZE; i++) {
                exact[i] += own[i] / divisor;
                bound[i] += 2.1f * UNIT_ROUNDOFF * Math.abs(own[i]) / divisor;
                rounded[i] += round(own[i]);
            }
        }
        for (int i = 0; i < SIZE; i++) {
            rounded[i] = round(rounded[i] / divisor);
        }
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            List<float[]> results =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                float[] result =
                                        step(
                                                group,
                                                new DataParallelConfig(Loss.l2Loss())
                                                        .optGradientReduction(reduction)
                                                        .optGradientHook(
                                                                GradientCompression.BFLOAT16));
                                assertEquals("bfloat16", typeOfLastReduction(group));
                                return result;
                            });
            for (float[] result : results) {
                assertArrayEquals(rounded, result);
                for (int i = 0; i < SIZE; i++) {
                    assertEquals(exact[i], result[i], bound[i]);
                }
            }
            float[] full =
                    ProcessGroups.run(
                                    groups,
                                    group -> {
                                        DataParallelConfig config =
                                                new DataParallelConfig(Loss.l2Loss())
                                                        .optGradientReduction(reduction);
                                        float[] result = step(group, config);
                                        assertEquals("float32", typeOfLastReduction(group));
                                        return result;
                                    })
                            .get(0);
            assertFalse(Arrays.equals(full, results.get(0)));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static String typeOfLastReduction(ProcessGroup group) {
        return group.flightRecorder().dump().entries().stream()
                .filter(entry -> entry.call().startsWith("allReduce"))
                .map(FlightEntry::dtype)
                .reduce((first, second) -> second)
                .orElseThrow();
    }

    /** Several passes a step, several buckets a pass: nothing is lost or counted twice. */
    @ParameterizedTest
    @CsvSource({"2, false", "2, true"})
    void gradientsOfSeveralPassesAddUp(int ranks, boolean together) throws Exception {
        float[][] expected =
                DataParallelTest.accumulate(
                        P2pEngine.NAME, ranks, GradientCompression.NONE, together);
        float[][] actual =
                DataParallelTest.accumulate(
                        P2pEngine.NAME, ranks, GradientCompression.BFLOAT16, together);
        for (int i = 0; i < expected.length; i++) {
            // Four steps of a rate of 0.05 with momentum, gradients up to 1.
            assertArrayEquals(expected[i], actual[i], 4 * UNIT_ROUNDOFF);
            assertFalse(Arrays.equals(expected[i], actual[i]));
        }
    }

    /** A property asks for it; the program learns as much. */
    @Test
    void systemPropertySetsCompression() throws Exception {
        float[] ends = new float[2];
        for (String value : List.of("none", "bfloat16")) {
            System.setProperty("org.djlx.gradientCompression", value);
            try {
                DataParallelConfig config = new DataParallelConfig(Training.loss()).optRanks(2);
                config.optOptimizer(Training.optimizer("adam"));
                Outcome outcome =
                        Training.fit(
                                P2pEngine.NAME,
                                config,
                                Training.block(),
                                32,
                                new BatchSampler(new SequenceSampler(), 32),
                                20,
                                5,
                                trainer -> {});
                List<Float> losses = outcome.losses();
                ends[value.equals("none") ? 0 : 1] = losses.get(19);
                assertTrue(losses.get(19) < losses.get(0) / 2, losses::toString);
            } finally {
                System.clearProperty("org.djlx.gradientCompression");
            }
        }
        assertEquals(ends[0], ends[1], 0.01f);
        assertTrue(ends[0] != ends[1]);
    }

    @Test
    void rejectsWrongPropertyValues() {
        System.setProperty("org.djlx.gradientCompression", "zip");
        try {
            IllegalArgumentException e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> new DataParallelConfig(Loss.l2Loss()));
            assertTrue(e.getMessage().contains("[NONE, BFLOAT16], not zip"), e.getMessage());
        } finally {
            System.clearProperty("org.djlx.gradientCompression");
        }
        assertThrows(
                IllegalArgumentException.class,
                () -> new DataParallelConfig(Loss.l2Loss()).optGradientHook(null));
    }
}
