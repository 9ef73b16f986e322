// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Random;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Matmuls of 16-bit arrays in float32, against loops in float64. */
class Float32MatmulTest {

    private static final int INPUTS = 1000;
    private static final int[] OUTPUTS = {1200, 300}; // more than one block, and another matrix

    @ParameterizedTest
    @CsvSource({"BFLOAT16,1", "BFLOAT16,32", "BFLOAT16,33", "FLOAT16,32", "FLOAT16,33"})
    void roundsTheProductOfAllMatricesOnce(ScalarType type, int rows) {
        Random random = new Random(rows);
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            NDArray x = random(manager, random, type, rows);
            List<NDArray> weights =
                    List.of(
                            random(manager, random, type, OUTPUTS[0]).transpose(),
                            random(manager, random, type, OUTPUTS[1]).transpose());
            NDArray product = Float32Matmul.multiply(x, weights, OUTPUTS[0] + OUTPUTS[1]);

            assertEquals(type, Torch.scalarType(product));
            assertEquals(new Shape(rows, OUTPUTS[0] + OUTPUTS[1]), product.getShape());
            float[] actual = floats(product);
            float[] left = floats(x);
            int column = 0;
            for (NDArray weight : weights) {
                float[] right = floats(weight.transpose());
                for (int output = 0; output < right.length / INPUTS; output++, column++) {
                    for (int row = 0; row < rows; row++) {
                        double expected = 0;
                        for (int i = 0; i < INPUTS; i++) {
                            double factor = left[row * INPUTS + i];
                            expected += factor * right[output * INPUTS + i];
                        }
                        // Half a unit in the last place, and float32's sums.
                        double rounding = type == ScalarType.BFLOAT16 ? 1.0 / 256 : 1.0 / 2048;
                        assertEquals(
                                expected,
                                actual[row * (OUTPUTS[0] + OUTPUTS[1]) + column],
                                Math.abs(expected) * rounding + 1e-4,
                                "row " + row + ", output " + column);
                    }
                }
            }
        }
    }

    private static NDArray random(NDManager manager, Random random, ScalarType type, int rows) {
        float[] numbers = new float[rows * INPUTS];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = random.nextFloat() - 0.5f;
        }
        return Torch.cast(manager.create(numbers, new Shape(rows, INPUTS)), type);
    }

    private static float[] floats(NDArray array) {
        return Torch.cast(array, ScalarType.FLOAT32).toFloatArray();
    }
}
