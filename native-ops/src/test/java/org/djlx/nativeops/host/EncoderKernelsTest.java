// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.DoubleUnaryOperator;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Compares the kernels of encoders with float64. */
class EncoderKernelsTest {

    private static final float EPSILON = 1e-5f;

    private final Random random = new Random(1);
    private final List<Memory> owned = new ArrayList<>(); // until the test ends

    @BeforeAll
    static void available() {
        NativeLibrary.CPU_KERNELS.ensureAvailability();
    }

    @BeforeEach
    @AfterEach
    void restore() {
        CpuKernels.useAvx512(true);
    }

    private static DoubleUnaryOperator activation(int code) {
        return switch (code) {
            case CpuKernels.GELU -> x -> x * normal(x);
            case CpuKernels.GELU_TANH ->
                    x ->
                            x
                                    / 2
                                    * (1
                                            + Math.tanh(
                                                    Math.sqrt(2 / Math.PI)
                                                            * (x + 0.044715 * x * x * x)));
            case CpuKernels.RELU -> x -> Math.max(x, 0);
            case CpuKernels.SILU -> x -> x / (1 + Math.exp(-x));
            default -> x -> x;
        };
    }

    /** The integral of the normal distribution, by its series. */
    private static double normal(double x) {
        if (Math.abs(x) > 7) {
            return x < 0 ? 0 : 1;
        }
        double term = x;
        double sum = x;
        for (int n = 1; n < 200; n++) {
            term *= x * x / (2 * n + 1);
            sum += term;
        }
        return 0.5 + sum * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
    }

    @ParameterizedTest
    @CsvSource({
        "1, 24, 40, 1",
        "16, 384, 72, 1",
        "17, 33, 7, 2",
        "128, 40, 130, 3",
        "129, 64, 96, 4",
        "300, 20, 2100, 0",
        "70, 15, 2049, 1",
        "130, 70, 1100, 1"
    })
    void layersEqualFloat64WhateverTheThreads(int rows, int size, int inner, int activation) {
        assumeTrue(CpuKernels.djlx_cpu_split_bytes(1, 1) > 0, "the CPU has no AMX for bfloat16");
        float[] x = numbers(rows * size, 1);
        float[] up = numbers(inner * size, 1);
        float[] upBias = numbers(inner, 3);
        float[] down = numbers(size * inner, 0.1);
        float[] norm = numbers(size, 1);
        float[] normBias = numbers(size, 1);
        Memory upSplit = split(up, inner, size);
        Memory downSplit = split(down, size, inner);
        long[] layers = {
            size,
            inner,
            activation,
            address(upSplit),
            address(floats(upBias)),
            inner,
            size,
            0,
            address(downSplit),
            0
        };
        Memory structs = aligned(layers.length * 8L);
        structs.write(0, layers, 0, layers.length);
        double[] expected = new double[rows * size];
        for (int row = 0; row < rows; row++) {
            double[] middle = multiply(x, row, up, size, inner);
            for (int i = 0; i < inner; i++) {
                middle[i] = activation(activation).applyAsDouble(middle[i] + upBias[i]);
            }
            for (int o = 0; o < size; o++) {
                double sum = x[row * size + o];
                for (int i = 0; i < inner; i++) {
                    sum += middle[i] * down[o * inner + i];
                }
                expected[row * size + o] = sum;
            }
            normalise(expected, row, norm, normBias);
        }
        float[] before = null;
        for (int threads : new int[] {1, 2, 3}) {
            Memory out = floats(new float[rows * size]);
            Memory input = floats(x);
            Memory weight = floats(norm);
            Memory bias = floats(normBias);
            CpuKernels.djlx_cpu_layers(
                    threads,
                    rows,
                    2,
                    address(structs),
                    address(input),
                    address(input),
                    address(weight),
                    address(bias),
                    EPSILON,
                    address(out));
            float[] result = out.getFloatArray(0, rows * size);
            for (int i = 0; i < result.length; i++) {
                assertEquals(expected[i], result[i], 1e-5, "element " + i);
            }
            if (before != null) {
                assertArrayEquals(before, result);
            }
            before = result;
        }
    }

    private static double[] multiply(float[] x, int row, float[] weight, int inputs, int outputs) {
        double[] result = new double[outputs];
        for (int o = 0; o < outputs; o++) {
            for (int i = 0; i < inputs; i++) {
                result[o] += (double) x[row * inputs + i] * weight[o * inputs + i];
            }
        }
        return result;
    }

    private static void normalise(double[] x, int row, float[] weight, float[] bias) {
        int size = weight.length;
        int from = row * size;
        double mean = Arrays.stream(x, from, from + size).average().orElseThrow();
        double variance =
                Arrays.stream(x, from, from + size)
                        .map(value -> (value - mean) * (value - mean))
                        .average()
                        .orElseThrow();
        for (int i = 0; i < size; i++) {
            double normed = (x[from + i] - mean) / Math.sqrt(variance + EPSILON);
            x[from + i] = normed * weight[i] + bias[i];
        }
    }

    @ParameterizedTest
    @CsvSource({"false", "true"})
    void productsHaveThePrecisionOfFloat32AndNanStaysInItsRow(boolean nan) {
        assumeTrue(CpuKernels.djlx_cpu_split_bytes(1, 1) > 0, "the CPU has no AMX for bfloat16");
        int rows = 40;
        int inputs = 1000;
        int outputs = 50;
        float[] x = numbers(rows * inputs, 1);
        if (nan) {
            x[5 * inputs + 3] = Float.NaN;
        }
        float[] weight = numbers(outputs * inputs, 1);
        Memory split = split(weight, outputs, inputs);
        Memory layer = aligned(CpuKernels.LAYER_LONGS * 8L);
        layer.write(0, new long[] {inputs, outputs, 0, address(split), 0}, 0, 5);
        Memory input = floats(x);
        Memory out = floats(new float[rows * outputs]);
        CpuKernels.djlx_cpu_layers(
                1, rows, 1, address(layer), address(input), 0, 0, 0, 0, address(out));
        double squares = 0;
        double squaresOfFloat32 = 0;
        for (int row = 0; row < rows; row++) {
            double[] expected = multiply(x, row, weight, inputs, outputs);
            for (int o = 0; o < outputs; o++) {
                float result = out.getFloat(4L * (row * outputs + o));
                assertEquals(Double.isNaN(expected[o]), Float.isNaN(result));
                if (!Float.isNaN(result)) {
                    float sum = 0;
                    for (int i = 0; i < inputs; i++) {
                        sum += x[row * inputs + i] * weight[o * inputs + i];
                    }
                    squares += Math.pow(result - expected[o], 2);
                    squaresOfFloat32 += Math.pow(sum - expected[o], 2);
                }
            }
        }
        assertTrue(squares < squaresOfFloat32, squares + ", " + squaresOfFloat32);
    }

    @ParameterizedTest
    @CsvSource({"true, 8", "true, 20", "true, 64", "false, 8", "false, 20", "false, 32"})
    void attentionEqualsFloat64WithinEachSequence(boolean avx512, int size) {
        CpuKernels.useAvx512(avx512);
        int heads = 3;
        long[] starts = {0, 1, 6, 22, 87, 103};
        int tokens = (int) starts[starts.length - 1];
        int width = heads * size;
        float[] qkv = numbers(tokens * 3 * width, 2);
        float scale = (float) (1 / Math.sqrt(size));
        Memory structs = aligned(starts.length * 8L);
        structs.write(0, starts, 0, starts.length);
        float[] before = null;
        for (int threads : new int[] {1, 2}) {
            Memory input = floats(qkv);
            Memory out = floats(new float[tokens * width]);
            CpuKernels.djlx_cpu_encoder_attention(
                    threads,
                    starts.length - 1,
                    heads,
                    size,
                    address(structs),
                    scale,
                    address(input),
                    address(out));
            float[] result = out.getFloatArray(0, tokens * width);
            if (before != null) {
                assertArrayEquals(before, result);
            }
            before = result;
        }
        for (int s = 0; s + 1 < starts.length; s++) {
            int first = (int) starts[s];
            int length = (int) starts[s + 1] - first;
            for (int query = first; query < first + length; query++) {
                for (int h = 0; h < heads; h++) {
                    int q = query * 3 * width + h * size;
                    int keys = first * 3 * width + width + h * size;
                    double[] shares = new double[length];
                    for (int t = 0; t < length; t++) {
                        double dot = 0;
                        for (int i = 0; i < size; i++) {
                            dot += (double) qkv[q + i] * qkv[keys + t * 3 * width + i];
                        }
                        shares[t] = Math.exp(dot * scale);
                    }
                    double total = Arrays.stream(shares).sum();
                    for (int i = 0; i < size; i++) {
                        double sum = 0;
                        for (int t = 0; t < length; t++) {
                            sum += shares[t] / total * qkv[keys + width + t * 3 * width + i];
                        }
                        assertEquals(sum, before[query * width + h * size + i], 5e-6);
                    }
                }
            }
        }
    }

    private float[] numbers(int count, double limit) {
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = (float) ((random.nextDouble() * 2 - 1) * limit);
        }
        return numbers;
    }

    private Memory split(float[] weight, int outputs, int inputs) {
        Memory split = aligned(CpuKernels.djlx_cpu_split_bytes(outputs, inputs));
        Memory floats = floats(weight);
        CpuKernels.djlx_cpu_split(2, outputs, inputs, address(floats), address(split));
        return split;
    }

    private Memory aligned(long bytes) {
        Memory memory = new Memory(bytes + 64);
        owned.add(memory);
        return memory.align(64);
    }

    private Memory floats(float... values) {
        Memory memory = aligned(4L * values.length);
        memory.write(0, values, 0, values.length);
        return memory;
    }

    private static long address(Pointer memory) {
        return Pointer.nativeValue(memory);
    }
}
