// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.lang.ref.Reference;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Compares the kernels with float64, with AVX-512 if the CPU has it and with AVX2. */
class CpuKernelsTest {

    private final Random random = new Random(1);

    @BeforeAll
    static void available() {
        NativeLibrary.CPU_KERNELS.ensureAvailability();
    }

    @AfterAll
    static void restore() {
        CpuKernels.useAvx512(true);
    }

    @ParameterizedTest
    @CsvSource({
        "true, FLOAT32, 64, 8", "true, BFLOAT16, 200, 7", "true, FLOAT16, 51, 130",
        "false, FLOAT32, 77, 9", "false, BFLOAT16, 64, 300", "false, FLOAT16, 8, 4",
        "true, FLOAT32, 1024, 1030"
    })
    void productsEqualFloat64WhateverTheRows(
            boolean avx512, ScalarType type, int inputs, int outputs) {
        CpuKernels.useAvx512(avx512);
        int rows = 9;
        int stride = inputs + 3;
        int width = outputs + 5;
        float[] x = numbers(rows * inputs);
        float[] bias = numbers(outputs);
        float[] w = numbers(outputs * stride);
        Memory weights = typed(type, w);
        float[][] before = new float[1][];
        for (int threads : new int[] {1, 2}) {
            for (int count : new int[] {rows, 1, 5}) {
                Memory out = floats(new float[rows * width]);
                CpuKernels.djlx_cpu_product(
                        threads,
                        type.code(),
                        count,
                        inputs,
                        outputs,
                        stride,
                        width,
                        address(floats(x)),
                        address(weights),
                        address(floats(bias)),
                        0,
                        address(out));
                float[] result = out.getFloatArray(0, count * width);
                if (before[0] == null) {
                    before[0] = result;
                }
                // The same bits for any number of rows and threads.
                assertArrayEquals(Arrays.copyOf(before[0], result.length), result);
            }
        }
        for (int row = 0; row < rows; row++) {
            for (int o = 0; o < outputs; o++) {
                double sum = bias[o];
                double size = Math.abs(bias[o]);
                for (int i = 0; i < inputs; i++) {
                    double term = (double) x[row * inputs + i] * w[o * stride + i];
                    sum += term;
                    size += Math.abs(term);
                }
                // Each of at most inputs / 8 + 16 additions rounds once.
                double allowed = size * (inputs / 8 + 16) * 0x1p-24;
                assertEquals(sum, before[0][row * width + o], allowed);
            }
            for (int o = outputs; o < width; o++) {
                assertEquals(0, before[0][row * width + o]); // of other products
            }
        }
    }

    /**
     * Weights and x that 4 or 8 bits hold exactly: each group has the number that makes its scale a
     * power of 2. Only the sum over groups is rounded.
     */
    @ParameterizedTest
    @CsvSource({
        "true, 1, FLOAT32, 300, 9", "false, 1, BFLOAT16, 300, 9", "true, 16, FLOAT16, 300, 9",
        "false, 16, FLOAT32, 300, 9", "true, 1, FLOAT32, 40, 2", "true, 16, BFLOAT16, 512, 70"
    })
    void quantizedProductsAreExactWhereTheNumbersFit(
            boolean avx512, int type, ScalarType from, int inputs, int outputs) {
        CpuKernels.useAvx512(avx512);
        int rows = 35; // threads share the rounding of x from 32 on
        float[] x = numbers(rows * inputs);
        float[] w = numbers(outputs * inputs);
        for (int i = 0; i < x.length; i++) {
            x[i] = i % inputs % 128 == 1 ? 127 / 64f : x[i];
        }
        for (int i = 0; i < w.length; i++) {
            boolean first = i % inputs % 128 == 2;
            if (type == CpuKernels.INT8) {
                w[i] = first ? -127 / 64f : w[i];
            } else {
                w[i] = first ? -1 : (random.nextInt(16) - 8) / 8f;
            }
        }
        Memory quantized = new Memory(CpuKernels.djlx_cpu_quantized_bytes(type, outputs, inputs));
        CpuKernels.djlx_cpu_quantize(
                2, type, from.code(), outputs, inputs, address(typed(from, w)), address(quantized));
        float[] result = null;
        for (int count : new int[] {rows, 1, 7, rows, 16}) {
            if (result != null && avx512) {
                CpuKernels.useAmx(count != rows);
            }
            Memory out = new Memory(4L * count * outputs);
            CpuKernels.djlx_cpu_product(
                    count == rows ? 2 : 1,
                    type,
                    count,
                    inputs,
                    outputs,
                    0,
                    outputs,
                    address(floats(x)),
                    address(quantized),
                    0,
                    0,
                    address(out));
            float[] all = out.getFloatArray(0, count * outputs);
            result = result == null ? all : result;
            // The same bits for any number of rows and threads, with and without AMX.
            assertArrayEquals(Arrays.copyOf(result, all.length), all);
        }
        for (int row = 0; row < rows; row++) {
            for (int o = 0; o < outputs; o++) {
                double sum = 0;
                for (int i = 0; i < inputs; i++) {
                    sum += (double) x[row * inputs + i] * w[o * inputs + i];
                }
                assertEquals(sum, result[row * outputs + o], 1e-4);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"1, 0.0072, 0.0096", "16, 0.08, 0.12"})
    void quantizedProductsRoundNumbersThatDoNotFit(int type, double least, double most) {
        int inputs = 1024;
        int outputs = 512;
        float[] x = new float[inputs];
        float[] w = new float[outputs * inputs];
        for (int i = 0; i < w.length; i++) {
            w[i] = (float) random.nextGaussian();
            x[i % inputs] = (float) random.nextGaussian();
        }
        w[5] = 0;
        Memory quantized = new Memory(CpuKernels.djlx_cpu_quantized_bytes(type, outputs, inputs));
        CpuKernels.djlx_cpu_quantize(
                1,
                type,
                ScalarType.FLOAT32.code(),
                outputs,
                inputs,
                address(floats(w)),
                address(quantized));
        Memory out = new Memory(4L * outputs);
        CpuKernels.djlx_cpu_product(
                1,
                type,
                1,
                inputs,
                outputs,
                0,
                outputs,
                address(floats(x)),
                address(quantized),
                0,
                0,
                address(out));
        double error = 0;
        double size = 0;
        for (int o = 0; o < outputs; o++) {
            double sum = 0;
            for (int i = 0; i < inputs; i++) {
                sum += (double) x[i] * w[o * inputs + i];
            }
            error += Math.pow(sum - out.getFloat(4L * o), 2);
            size += sum * sum;
        }
        double relative = Math.sqrt(error / size);
        // Of 128 normal numbers the largest is about 2.6. An error's root mean square is the step /
        // sqrt(12). INT8: 2.6 / 127 / 3.46 = 0.0059 for weights and for x, together 0.0084. INT4:
        // 2.6 / 8 / 3.46 = 0.094 and, for numbers from 7.5 steps on, which become 7, some more.
        assertTrue(relative > least && relative < most, "error " + relative);
    }

    @ParameterizedTest
    @CsvSource({"true, 1", "false, 1", "true, 16", "false, 16"})
    void quantizedProductsOfNanInfinityAndTinyNumbers(boolean avx512, int type) {
        CpuKernels.useAvx512(avx512);
        int inputs = 200;
        int outputs = 4;
        float tiny = 2e-43f; // a scale of it is denormal, and rounded by a tenth and more
        float[] w = new float[outputs * inputs];
        float[] x = new float[outputs * inputs];
        Arrays.fill(w, 1);
        Arrays.fill(x, 1);
        for (float[] of : new float[][] {w, x}) {
            of[inputs + 150] = Float.NaN; // in the second row
            of[2 * inputs + 3] = Float.NEGATIVE_INFINITY;
            Arrays.fill(of, 3 * inputs, 4 * inputs, tiny);
        }
        Memory quantized = new Memory(CpuKernels.djlx_cpu_quantized_bytes(type, outputs, inputs));
        int from = ScalarType.FLOAT32.code();
        CpuKernels.djlx_cpu_quantize(
                1, type, from, outputs, inputs, address(floats(w)), address(quantized));
        Memory out = new Memory(4L * outputs * outputs);
        CpuKernels.djlx_cpu_product(
                1,
                type,
                outputs,
                inputs,
                outputs,
                0,
                outputs,
                address(floats(x)),
                address(quantized),
                0,
                0,
                address(out));
        for (int row = 0; row < outputs; row++) {
            for (int o = 0; o < outputs; o++) {
                float product = out.getFloat(4L * (row * outputs + o));
                if (row % 3 != 0 || o % 3 != 0) {
                    assertFalse(Float.isFinite(product), "row " + row + ", output " + o);
                } else {
                    boolean small = row == 3 || o == 3;
                    assertEquals(small ? 0 : inputs, product, small ? 1e-40 : 1e-3);
                }
            }
        }
    }

    /** Also of parts without columns, and so small that a thread computes several. */
    @ParameterizedTest
    @CsvSource({"true, 1, 2000", "false, 3, 2000", "true, 6, 40", "false, 1, 40"})
    void productsOfPartsHaveTheBitsOfEach(boolean avx512, int rows, int inputs) {
        CpuKernels.useAvx512(avx512);
        int[] outputs = {70, 0, 3, 129, 1};
        int width = IntStream.of(outputs).sum();
        Memory x = floats(numbers(rows * inputs));
        Memory expected = floats(numbers(rows * width));
        Memory actual = floats(expected.getFloatArray(0, rows * width));
        Memory parts = new Memory((long) outputs.length * CpuKernels.PART_LONGS * Long.BYTES);
        Memory[] kept = new Memory[2 * outputs.length];
        int column = 0;
        for (int i = 0; i < outputs.length; i++) {
            ScalarType type = i % 2 == 0 ? ScalarType.BFLOAT16 : ScalarType.FLOAT32;
            Memory weights = typed(type, numbers(Math.max(1, outputs[i]) * inputs));
            Memory bias = floats(numbers(Math.max(1, outputs[i])));
            kept[2 * i] = weights;
            kept[2 * i + 1] = bias;
            long biasOrNone = i == 2 ? 0 : address(bias);
            long to = address(expected) + (long) column * Float.BYTES;
            CpuKernels.djlx_cpu_product(
                    1,
                    type.code(),
                    rows,
                    inputs,
                    outputs[i],
                    inputs,
                    width,
                    address(x),
                    address(weights),
                    biasOrNone,
                    0.5f,
                    to);
            long[] part = {type.code(), outputs[i], inputs, address(weights), biasOrNone};
            parts.write((long) i * CpuKernels.PART_LONGS * Long.BYTES, part, 0, part.length);
            column += outputs[i];
        }
        CpuKernels.djlx_cpu_products(
                2,
                rows,
                inputs,
                outputs.length,
                address(parts),
                width,
                address(x),
                0.5f,
                address(actual));
        assertArrayEquals(
                expected.getFloatArray(0, rows * width), actual.getFloatArray(0, rows * width));
        Reference.reachabilityFence(kept);
        Reference.reachabilityFence(x);
        Reference.reachabilityFence(parts);
    }

    /** Panels of several parts, as of one. */
    @ParameterizedTest
    @CsvSource({"1", "16"})
    void quantizedProductsOfPartsHaveTheBitsOfOne(int type) {
        int inputs = 300;
        int first = 160;
        int outputs = 219;
        Memory x = floats(numbers(2 * inputs));
        Memory quantized = new Memory(CpuKernels.djlx_cpu_quantized_bytes(type, outputs, inputs));
        int from = ScalarType.FLOAT32.code();
        float[] w = numbers(outputs * inputs);
        CpuKernels.djlx_cpu_quantize(
                1, type, from, outputs, inputs, address(floats(w)), address(quantized));
        long second = address(quantized) + CpuKernels.djlx_cpu_quantized_bytes(type, first, inputs);
        long[] parts = {type, first, 0, address(quantized), 0, type, outputs - first, 0, second, 0};
        Memory table = new Memory((long) parts.length * Long.BYTES);
        table.write(0, parts, 0, parts.length);
        Memory expected = new Memory(8L * outputs);
        Memory actual = new Memory(8L * outputs);
        CpuKernels.djlx_cpu_product(
                1,
                type,
                2,
                inputs,
                outputs,
                0,
                outputs,
                address(x),
                address(quantized),
                0,
                0,
                address(expected));
        CpuKernels.djlx_cpu_products(
                2, 2, inputs, 2, address(table), outputs, address(x), 0, address(actual));
        assertArrayEquals(
                expected.getFloatArray(0, 2 * outputs), actual.getFloatArray(0, 2 * outputs));
        Reference.reachabilityFence(x);
        Reference.reachabilityFence(quantized);
        Reference.reachabilityFence(table);
    }

    @ParameterizedTest
    @CsvSource({"true", "false"})
    void productsAreAddedWithAFactor(boolean avx512) {
        CpuKernels.useAvx512(avx512);
        Memory out = floats(1, 2, 3, 4, 5);
        long x = address(floats(2, 1));
        long weights = address(floats(1, 0, 0, 1, 1, 1, 2, 2, 3, 3));
        int type = ScalarType.FLOAT32.code();
        CpuKernels.djlx_cpu_product(1, type, 1, 2, 5, 2, 5, x, weights, 0, 0.5f, address(out));
        assertArrayEquals(new float[] {2, 2.5f, 4.5f, 7, 9.5f}, out.getFloatArray(0, 5));
    }

    @ParameterizedTest
    @CsvSource({"true, 64", "true, 21", "false, 64", "false, 13"})
    void normsAndGatesEqualFloat64(boolean avx512, int size) {
        CpuKernels.useAvx512(avx512);
        float[] x = numbers(2 * size);
        float[] delta = numbers(2 * size);
        float[] weight = numbers(size);
        Memory sum = floats(x);
        Memory out = floats(new float[2 * size]);
        CpuKernels.djlx_cpu_rms_norm(
                1,
                2,
                size,
                address(sum),
                address(floats(delta)),
                address(floats(weight)),
                1e-5f,
                address(out));
        for (int row = 0; row < 2; row++) {
            double squares = 0;
            for (int i = row * size; i < (row + 1) * size; i++) {
                squares += Math.pow(x[i] + delta[i], 2);
            }
            for (int i = 0; i < size; i++) {
                int at = row * size + i;
                assertEquals(x[at] + delta[at], sum.getFloat(4L * at));
                double norm = (x[at] + delta[at]) / Math.sqrt(squares / size + 1e-5) * weight[i];
                assertEquals(norm, out.getFloat(4L * at), 2e-6 * Math.abs(norm));
            }
        }
        float[] both = numbers(2 * size);
        both[0] = 100;
        both[1] = -100;
        for (int gelu : new int[] {0, 1}) {
            CpuKernels.djlx_cpu_gate(1, 1, size, gelu, address(floats(both)), address(out));
            for (int i = 0; i < size; i++) {
                double g = both[i];
                double t = Math.tanh(Math.sqrt(2 / Math.PI) * (g + 0.044715 * g * g * g));
                double activated = gelu == 1 ? g * (1 + t) / 2 : g / (1 + Math.exp(-g));
                double expected = activated * both[size + i];
                assertEquals(expected, out.getFloat(4L * i), 1e-6 * (1 + Math.abs(expected)));
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "true, FLOAT32, 64, 0, 0",
        "false, FLOAT32, 20, 0, 0",
        "true, FLOAT32, 32, 70, 0",
        "true, BFLOAT16, 48, 0, 3",
        "false, FLOAT16, 8, 5, 3"
    })
    void attentionEqualsFloat64(boolean avx512, ScalarType type, int size, int window, float cap) {
        CpuKernels.useAvx512(avx512);
        int queryHeads = 6;
        int kvHeads = 2;
        int width = kvHeads * size;
        int[] positions = {130, 0, 63};
        int length = 131;
        int heads = queryHeads + 2 * kvHeads;
        float[] qkv = numbers(3 * heads * size);
        float[] queryNorm = numbers(size);
        float[] keyNorm = numbers(size);
        float[] angles = numbers(length * size / 2);
        int[] slots = IntStream.range(0, 3 * length).map(i -> (i * 7 + 3) % (3 * length)).toArray();
        float[] keys = numbers(3 * length * width);
        float[] values = numbers(3 * length * width);
        Memory slotMemory = new Memory(4L * slots.length);
        slotMemory.write(0, slots, 0, slots.length);
        Memory positionMemory = new Memory(12);
        positionMemory.write(0, positions, 0, 3);
        Memory keyMemory = typed(type, keys);
        Memory valueMemory = typed(type, values);
        float[] cosines = map(angles, Math::cos);
        float[] sines = map(angles, Math::sin);
        Memory out = new Memory(4L * 3 * queryHeads * size);
        CpuKernels.djlx_cpu_attention(
                2,
                type.code(),
                3,
                queryHeads,
                kvHeads,
                size,
                length,
                window,
                0.3f,
                cap,
                1e-5f,
                address(floats(qkv)),
                address(floats(queryNorm)),
                address(floats(keyNorm)),
                address(floats(cosines)),
                address(floats(sines)),
                address(positionMemory),
                address(slotMemory),
                address(keyMemory),
                address(valueMemory),
                address(out));
        for (int row = 0; row < 3; row++) {
            int position = positions[row];
            double[][] own = new double[heads][];
            for (int h = 0; h < heads; h++) {
                double[] head = new double[size];
                for (int i = 0; i < size; i++) {
                    head[i] = qkv[(row * heads + h) * size + i];
                }
                own[h] =
                        h >= queryHeads + kvHeads
                                ? head
                                : rotated(
                                        head,
                                        h < queryHeads ? queryNorm : keyNorm,
                                        angles,
                                        position);
            }
            for (int h = 0; h < queryHeads; h++) {
                int kv = h / (queryHeads / kvHeads);
                double[] expected = new double[size];
                double total = 0;
                int first = window == 0 ? 0 : Math.max(0, position - window + 1);
                for (int t = first; t <= position; t++) {
                    double score = 0;
                    int at = slots[row * length + t] * width + kv * size;
                    boolean isOwn = t == position;
                    for (int i = 0; i < size; i++) {
                        double key = isOwn ? own[queryHeads + kv][i] : keys[at + i];
                        score += 0.3 * own[h][i] * key;
                    }
                    double weight = Math.exp(cap == 0 ? score : cap * Math.tanh(score / cap));
                    total += weight;
                    for (int i = 0; i < size; i++) {
                        double value = isOwn ? own[queryHeads + kvHeads + kv][i] : values[at + i];
                        expected[i] += weight * value;
                    }
                }
                for (int i = 0; i < size; i++) {
                    float result = out.getFloat(4L * ((row * queryHeads + h) * size + i));
                    // The own key and value are rounded to the type, the others have been.
                    double allowed = type == ScalarType.FLOAT32 ? 2e-5 : 2e-2;
                    assertEquals(expected[i] / total, result, allowed);
                }
            }
        }
    }

    /** Rows of one sequence: as rows of a token each, and with the same bits in every part. */
    @ParameterizedTest
    @CsvSource({
        "true, FLOAT32, 64, 0, 0, 0",
        "false, FLOAT32, 64, 0, 0, 70",
        "true, BFLOAT16, 48, 30, 0, 100",
        "false, FLOAT16, 20, 67, 3, 3",
        "true, FLOAT16, 6, 0, 2, 60"
    })
    void attentionOfAdjacentTokensEqualsThatOfEach(
            boolean avx512, ScalarType type, int size, int window, float cap, int start) {
        CpuKernels.useAvx512(avx512);
        int rows = 77;
        int length = start + rows;
        int queryHeads = 6;
        int kvHeads = 2;
        int width = (queryHeads + 2 * kvHeads) * size;
        float[] qkv = numbers(rows * width);
        int[] positions = IntStream.range(start, length).toArray();
        int[] slots = IntStream.range(0, length).map(i -> (i * 13 + 3) % length).toArray();
        float[] angles = numbers(length * size / 2);
        Memory cosines = floats(map(angles, Math::cos));
        Memory sines = floats(map(angles, Math::sin));
        Memory keys = typed(type, numbers(length * kvHeads * size));
        Memory values = typed(type, numbers(length * kvHeads * size));
        Memory positionMemory = new Memory(4L * rows);
        positionMemory.write(0, positions, 0, rows);
        Memory slotMemory = new Memory(4L * rows * length);
        for (int row = 0; row < rows; row++) {
            slotMemory.write(4L * row * length, slots, 0, length);
        }
        float[][] results = new float[3][];
        for (int i = 0; i < results.length; i++) {
            Memory in = floats(qkv);
            Memory out = new Memory(4L * rows * queryHeads * size);
            int[] ends = i == 2 ? new int[] {0, 41, rows} : new int[] {0, rows};
            for (int part = 1; part < ends.length; part++) {
                int first = ends[part - 1];
                CpuKernels.djlx_cpu_attention(
                        3 - i,
                        type.code(),
                        ends[part] - first,
                        queryHeads,
                        kvHeads,
                        size,
                        i == 0 ? length : 0,
                        window,
                        0.3f,
                        cap,
                        1e-5f,
                        address(in) + 4L * first * width,
                        0,
                        0,
                        address(cosines),
                        address(sines),
                        address(positionMemory) + 4L * first,
                        address(slotMemory),
                        address(keys),
                        address(values),
                        address(out) + 4L * first * queryHeads * size);
            }
            results[i] = out.getFloatArray(0, rows * queryHeads * size);
        }
        assertArrayEquals(results[0], results[1], 1e-5f);
        assertArrayEquals(results[1], results[2]);
        Reference.reachabilityFence(List.of(cosines, sines, keys, values, positionMemory));
    }

    @ParameterizedTest
    @CsvSource({"true, 1", "false, 7", "true, 16", "false, 4101", "true, 33000", "false, 33000"})
    void argmaxEqualsFloat64(boolean avx512, int size) {
        CpuKernels.useAvx512(avx512);
        int rows = 5;
        float[] x = numbers(rows * size);
        x[size - 1] = 2.5f; // the only highest, in the last place
        Arrays.fill(x, size, 2 * size, Float.NEGATIVE_INFINITY);
        x[3 * size - 1] = Float.NaN;
        x[3 * size] = Float.POSITIVE_INFINITY;
        Memory indices = new Memory(8L * rows);
        Memory maxima = new Memory(4L * rows);
        Memory sums = new Memory(4L * rows);
        CpuKernels.djlx_cpu_argmax(
                2,
                rows,
                size,
                address(floats(x)),
                address(indices),
                address(maxima),
                address(sums));
        for (int row = 0; row < rows; row += 4) {
            double sum = 0;
            int best = 0;
            for (int i = 0; i < size; i++) {
                best = x[row * size + i] > x[row * size + best] ? i : best;
            }
            for (int i = 0; i < size; i++) {
                sum += Math.exp(x[row * size + i] - x[row * size + best]);
            }
            assertEquals(best, indices.getLong(8L * row));
            assertEquals(x[row * size + best], maxima.getFloat(4L * row));
            assertEquals(sum, sums.getFloat(4L * row), 1e-5 * sum);
        }
        for (int row = 1; row < 4; row++) {
            assertTrue(Float.isNaN(sums.getFloat(4L * row)), "row " + row);
        }
    }

    private static double[] rotated(double[] head, float[] norm, float[] angles, int position) {
        int half = head.length / 2;
        double squares = Arrays.stream(head).map(v -> v * v).sum();
        double root = Math.sqrt(squares / head.length + 1e-5);
        double[] result = new double[head.length];
        for (int i = 0; i < half; i++) {
            double angle = angles[position * half + i];
            double first = head[i] / root * norm[i];
            double second = head[half + i] / root * norm[half + i];
            result[i] = first * Math.cos(angle) - second * Math.sin(angle);
            result[half + i] = second * Math.cos(angle) + first * Math.sin(angle);
        }
        return result;
    }

    private interface Function {
        double of(double x);
    }

    private static float[] map(float[] x, Function function) {
        float[] result = new float[x.length];
        for (int i = 0; i < x.length; i++) {
            result[i] = (float) function.of(x[i]);
        }
        return result;
    }

    /** Returns numbers with 7 bits, which all types can hold. */
    private float[] numbers(int count) {
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = (random.nextInt(255) - 127) / 64f;
        }
        return numbers;
    }

    private static Memory floats(float... values) {
        Memory memory = new Memory(4L * values.length);
        memory.write(0, values, 0, values.length);
        return memory;
    }

    /** Writes numbers of 7 bits in a type. */
    private static Memory typed(ScalarType type, float[] values) {
        if (type == ScalarType.FLOAT32) {
            return floats(values);
        }
        Memory memory = new Memory(2L * values.length);
        for (int i = 0; i < values.length; i++) {
            int bits = Float.floatToRawIntBits(values[i]);
            int half = values[i] == 0 ? 0 : bits >> 16 & 0x8000 | (bits >> 13 & 0x3ffff) - 0x1c000;
            memory.setShort(2L * i, (short) (type == ScalarType.BFLOAT16 ? bits >> 16 : half));
        }
        return memory;
    }

    private static long address(Pointer memory) {
        return Pointer.nativeValue(memory);
    }
}
