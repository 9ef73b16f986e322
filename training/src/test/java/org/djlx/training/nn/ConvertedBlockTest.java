// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.util.Pair;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * A transformer block with weights converted to the type of its input, compared with the same block
 * without conversion: output, and gradients of the input and all parameters.
 */
class ConvertedBlockTest {

    private static final int TOKENS = 16;
    private static final int SIZE = 32;
    private static final int SEED = 5;

    // With larger weights, rounding would decide which token attention selects.
    private static final float DEVIATION = 0.1f;

    /** Makes the groups of a test. */
    List<ProcessGroup> groups(int ranks) {
        return ProcessGroups.local(ranks);
    }

    private static ParallelTransformerBlock block(
            ProcessGroup group, boolean sequence, boolean rotary) {
        return ParallelTransformerBlock.builder()
                .setGroup(group)
                .optSequenceParallel(sequence)
                .setHeads(4)
                .optKeyValueHeads(2)
                .setHeadSize(8)
                .setHidden(64)
                .optRotary(rotary ? RotaryEmbedding.builder().setHeadSize(8).build() : null)
                .build();
    }

    /** Four ranks with two key and value heads: pairs of ranks share one. */
    @ParameterizedTest
    @CsvSource({
        "1, true, true, FLOAT64, FLOAT32, 1e-4",
        "2, true, true, FLOAT64, FLOAT32, 1e-4",
        "2, true, false, FLOAT64, FLOAT32, 1e-4",
        "2, false, true, FLOAT64, FLOAT32, 1e-4",
        "4, true, true, FLOAT64, FLOAT32, 1e-4",
        "1, true, true, FLOAT32, BFLOAT16, 0.04",
        "2, true, true, FLOAT32, BFLOAT16, 0.04",
        "2, false, false, FLOAT32, BFLOAT16, 0.04",
        "4, true, true, FLOAT32, BFLOAT16, 0.04"
    })
    void isAsWithoutConversion(
            int ranks,
            boolean sequence,
            boolean rotary,
            DataType masters,
            ScalarType type,
            double tolerance) {
        Engine.getEngine("PyTorch").setRandomSeed(SEED);
        List<ProcessGroup> groups = groups(ranks);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager =
                                NDManager.newBaseManager(group.device(), "PyTorch")) {
                            ParallelTransformerBlock block = block(group, sequence, rotary);
                            Shape shape = new Shape(sequence ? TOKENS / ranks : TOKENS, SIZE);
                            block.setInitializer(
                                    new NormalInitializer(DEVIATION), Parameter.Type.WEIGHT);
                            block.initialize(manager, masters, shape);
                            // The first pass creates gradients; later passes add to them.
                            Pass first = pass(group, block, shape, type, Map.of());
                            Pass second = pass(group, block, shape, type, first.sums);
                            ScalarType wide = ScalarType.valueOf(masters.name());
                            Pass exact = pass(group, block, shape, wide, second.sums);
                            exact.values.forEach(
                                    (name, values) -> {
                                        requireNear(name, values, first, tolerance);
                                        requireNear(name, values, second, tolerance);
                                    });
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void requireNear(String name, double[] expected, Pass actual, double tolerance) {
        double largest = 0;
        double error = 0;
        for (int i = 0; i < expected.length; i++) {
            largest = Math.max(largest, Math.abs(expected[i]));
            error = Math.max(error, Math.abs(expected[i] - actual.values.get(name)[i]));
        }
        assertTrue(
                error <= tolerance * largest,
                name + ": " + error + " is too much where the largest is " + largest);
    }

    /** The output of a pass, and the gradients accumulated so far. */
    private record Pass(Map<String, double[]> values, Map<String, double[]> sums) {}

    private static Pass pass(
            ProcessGroup group,
            ParallelTransformerBlock block,
            Shape shape,
            ScalarType type,
            Map<String, double[]> before) {
        Pass pass = new Pass(new LinkedHashMap<>(), new LinkedHashMap<>());
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = own(manager, group, shape, type, 3);
            x.setRequiresGradient(true);
            ParameterStore store = new ParameterStore(manager, false);
            NDArray y = block.forward(store, new NDList(x), true).singletonOrThrow();
            assertEquals(type, Torch.scalarType(y));
            scope.backward(List.of(y), List.of(own(manager, group, shape, type, 4)));
            pass.values.put("output", NoGradient.get(() -> TestArrays.values(y)));
            try (NDArray gradient = x.getGradient()) {
                pass.values.put("input", TestArrays.values(gradient));
            }
        }
        for (Pair<String, Parameter> named : block.getParameters()) {
            try (NDArray gradient = named.getValue().getArray().getGradient()) {
                double[] sum = TestArrays.values(gradient);
                double[] own = sum.clone();
                double[] old = before.getOrDefault(named.getKey(), new double[own.length]);
                for (int i = 0; i < own.length; i++) {
                    own[i] -= old[i];
                }
                pass.values.put(named.getKey(), own);
                pass.sums.put(named.getKey(), sum);
            }
        }
        return pass;
    }

    /** Returns this rank's rows of a random matrix. */
    private static NDArray own(
            NDManager manager, ProcessGroup group, Shape shape, ScalarType type, long seed) {
        NDArray whole =
                TestArrays.random(manager, ScalarType.FLOAT64, new Shape(TOKENS, SIZE), seed);
        long rows = shape.get(0);
        long first = rows == TOKENS ? 0 : rows * group.rank();
        return Torch.cast(whole.get(first + ":" + (first + rows) + ", :"), type);
    }
}
