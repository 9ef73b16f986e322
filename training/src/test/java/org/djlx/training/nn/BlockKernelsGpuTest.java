// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.GpuTests;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Each kernel compared with loops in float64. Repeated calls give the same bits. */
@Tag("gpu")
@Tag("beside")
@Timeout(120)
class BlockKernelsGpuTest {

    private static final float EPSILON = 1e-5f;

    private final Random random = new Random(5);
    private NDManager manager;
    private BlockKernels kernels;

    @BeforeEach
    void open() {
        GpuTests.require(1, NativeLibrary.NVRTC);
        manager = NDManager.newBaseManager(Device.gpu(0));
        kernels = new BlockKernels(Device.gpu(0));
    }

    @AfterEach
    void close() {
        if (kernels != null) {
            kernels.close();
        }
        if (manager != null) {
            manager.close();
        }
    }

    private NDArray random(ScalarType type, long... shape) {
        float[] values = new float[(int) new Shape(shape).size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        try (NDArray floats = manager.create(values, new Shape(shape))) {
            return Torch.cast(floats, type);
        }
    }

    private static float[] floats(NDArray array) {
        try (NDArray floats = Torch.cast(array, ScalarType.FLOAT32)) {
            return floats.toFloatArray();
        }
    }

    /**
     * Compares with values computed in float64.
     *
     * @param scale the size of what sums are made of, of which float32 keeps 23 bits
     */
    private static void requireNear(
            double[] expected, NDArray actual, ScalarType type, double scale) {
        double unit =
                switch (type) {
                    case BFLOAT16 -> 0x1p-8;
                    case FLOAT16 -> 0x1p-11;
                    default -> 0x1p-22;
                };
        float[] values = floats(actual);
        for (int i = 0; i < expected.length; i++) {
            double most = unit * Math.abs(expected[i]) + 0x1p-20 * scale + 0x1p-24;
            if (!(Math.abs(expected[i] - values[i]) <= most)) { // Also if it is not a number.
                fail(type + ", element " + i + ": " + expected[i] + " became " + values[i]);
            }
        }
    }

    /** Rows of whole and partial packs; fewer and more rows than thread blocks. */
    @ParameterizedTest(name = "{0}, {1} x {2}")
    @CsvSource({
        "FLOAT32, 3, 100",
        "FLOAT32, 700, 1030",
        "FLOAT32, 40, 11000",
        "FLOAT16, 1, 7",
        "FLOAT16, 700, 1030",
        "FLOAT16, 40, 4096",
        "BFLOAT16, 1, 1",
        "BFLOAT16, 700, 1030",
        "BFLOAT16, 1000, 4096",
        "BFLOAT16, 40, 11000"
    })
    void normalises(ScalarType type, int rows, int size) {
        NDArray x = random(type, rows, size);
        NDArray weight = random(type, size);
        NDArray gradient = random(type, rows, size);
        assertTrue(kernels.isNormalizable(size));
        float[] xs = floats(x);
        float[] ws = floats(weight);
        float[] gs = floats(gradient);
        double[] norm = new double[rows * size];
        double[] ofX = new double[rows * size];
        double[] ofWeight = new double[size];
        for (int row = 0; row < rows; row++) {
            double squares = 0;
            double products = 0;
            for (int i = 0; i < size; i++) {
                int at = row * size + i;
                squares += (double) xs[at] * xs[at];
                products += (double) gs[at] * ws[i] * xs[at];
            }
            double scale = 1 / Math.sqrt(squares / size + EPSILON);
            for (int i = 0; i < size; i++) {
                int at = row * size + i;
                norm[at] = xs[at] * scale * ws[i];
                ofX[at] =
                        scale
                                * ((double) gs[at] * ws[i]
                                        - xs[at] * scale * scale * products / size);
                ofWeight[i] += gs[at] * xs[at] * scale;
            }
        }
        requireNear(norm, kernels.normalized(x, weight, EPSILON), type, 1);
        List<NDArray> gradients = kernels.normalizedGradients(x, weight, gradient, null, EPSILON);
        requireNear(ofX, gradients.get(0), type, 2);
        requireNear(ofWeight, gradients.get(1), type, Math.sqrt(rows) * 2);
        List<NDArray> again = kernels.normalizedGradients(x, weight, gradient, null, EPSILON);
        for (int i = 0; i < 2; i++) {
            assertArrayEquals(floats(gradients.get(i)), floats(again.get(i)));
        }
        // With a residual connection: x is a sum, and has a second gradient.
        NDArray addend = random(type, rows, size);
        NDArray sum = x.add(addend);
        List<NDArray> both = kernels.addedNormalized(x, addend, weight, EPSILON);
        assertArrayEquals(floats(sum), floats(both.get(0)));
        assertArrayEquals(floats(kernels.normalized(sum, weight, EPSILON)), floats(both.get(1)));
        List<NDArray> more = kernels.normalizedGradients(x, weight, gradient, addend, EPSILON);
        float[] others = floats(addend);
        for (int i = 0; i < ofX.length; i++) {
            ofX[i] += others[i];
        }
        requireNear(ofX, more.get(0), type, 3);
        assertArrayEquals(floats(gradients.get(1)), floats(more.get(1)));
    }

    /** Two sequences of several positions; half heads of whole and partial packs. */
    @ParameterizedTest(name = "{0}, {1} heads of {2}")
    @CsvSource({"FLOAT32, 3, 10", "FLOAT16, 2, 6", "BFLOAT16, 16, 128", "BFLOAT16, 40, 128"})
    void turnsHeadsAndBack(ScalarType type, int heads, int headSize) {
        int positions = 37;
        int half = headSize / 2;
        NDArray x = random(type, 2, positions, heads, headSize);
        NDArray cosines = random(type, positions, 1, half);
        NDArray sines = random(type, positions, 1, half);
        float[] xs = floats(x);
        float[] cs = floats(cosines);
        float[] ss = floats(sines);
        double[][] expected = new double[2][xs.length];
        for (int vector = 0; vector < 2 * positions * heads; vector++) {
            int position = vector / heads % positions;
            for (int i = 0; i < half; i++) {
                int at = vector * headSize + i;
                double cosine = cs[position * half + i];
                for (int back = 0; back < 2; back++) {
                    double sine = (back == 0 ? 1 : -1) * (double) ss[position * half + i];
                    expected[back][at] = xs[at] * cosine - xs[at + half] * sine;
                    expected[back][at + half] = xs[at + half] * cosine + xs[at] * sine;
                }
            }
        }
        for (int back = 0; back < 2; back++) {
            NDArray turned = kernels.rotated(x, cosines, sines, back == 1);
            requireNear(expected[back], turned, type, 2);
        }
    }

    /**
     * Queries and keys are rotated as on their own, values are copied. The gradient goes back into
     * one array.
     */
    @ParameterizedTest(name = "{0}, heads of {1}")
    @CsvSource({"FLOAT32, 10", "FLOAT16, 6", "BFLOAT16, 128"})
    void dividesHeads(ScalarType type, int headSize) {
        List<Long> counts = List.of(6L, 3L, 2L);
        NDArray x = random(type, 2, 37, 11, headSize);
        NDArray cosines = random(type, 37, 1, headSize / 2);
        NDArray sines = random(type, 37, 1, headSize / 2);
        NDList parts = x.split(new long[] {6, 9}, 2);
        NDList back = new NDList();
        List<NDArray> divided = kernels.divided(x, counts, cosines, sines);
        for (int i = 0; i < 3; i++) {
            NDArray part = parts.get(i);
            NDArray expected = i < 2 ? kernels.rotated(part, cosines, sines, false) : part;
            assertEquals(part.getShape(), divided.get(i).getShape());
            assertArrayEquals(floats(expected), floats(divided.get(i)));
            back.add(i < 2 ? kernels.rotated(part, cosines, sines, true) : part);
        }
        NDArray gradient = kernels.dividedGradient(parts, cosines, sines);
        assertEquals(x.getShape(), gradient.getShape());
        assertArrayEquals(floats(NDArrays.concat(back, 2)), floats(gradient));
    }

    /** Gate and value in two arrays, and in the halves of one; rows of whole and partial packs. */
    @ParameterizedTest(name = "{0}, {1} x {2}")
    @CsvSource({
        "FLOAT32, 1, 1",
        "FLOAT32, 5, 13",
        "FLOAT32, 3000, 1000",
        "FLOAT16, 5, 13",
        "BFLOAT16, 1, 4096",
        "BFLOAT16, 3000, 1001",
        "BFLOAT16, 700, 7168"
    })
    void gates(ScalarType type, int rows, int size) {
        int count = rows * size;
        NDArray gate = random(type, rows, size);
        NDArray value = random(type, rows, size);
        NDArray gradient = random(type, rows, size);
        float[] xs = floats(gate);
        float[] vs = floats(value);
        float[] gs = floats(gradient);
        double[][] expected = new double[3][count];
        for (int i = 0; i < count; i++) {
            double sigmoid = 1 / (1 + Math.exp(-xs[i]));
            expected[0][i] = xs[i] * sigmoid * vs[i];
            expected[1][i] = (double) gs[i] * vs[i] * sigmoid * (1 + xs[i] * (1 - sigmoid));
            expected[2][i] = gs[i] * (xs[i] * sigmoid);
        }
        List<NDArray> two = List.of(gate, value);
        requireNear(expected[0], kernels.gated(two), type, 1);
        List<NDArray> gradients = kernels.gatedGradients(two, gradient);
        requireNear(expected[1], gradients.get(0), type, 1);
        requireNear(expected[2], gradients.get(1), type, 1);
        List<NDArray> one = List.of(gate.concat(value, 1));
        assertArrayEquals(floats(kernels.gated(two)), floats(kernels.gated(one)));
        assertArrayEquals(
                floats(gradients.get(0).concat(gradients.get(1), 1)),
                floats(kernels.gatedGradients(one, gradient).get(0)));
    }

    @ParameterizedTest(name = "{0}")
    @EnumSource(names = {"FLOAT16", "BFLOAT16"})
    void joinsMatrices(ScalarType type) {
        for (int[] columns : new int[][] {{1}, {3, 8}, {64, 7, 9}, {1024, 512, 512}}) {
            List<NDArray> matrices = new ArrayList<>();
            NDList rounded = new NDList();
            for (int count : columns) {
                NDArray matrix = random(ScalarType.FLOAT32, 1500, count);
                matrices.add(matrix);
                rounded.add(Torch.cast(matrix, type));
            }
            assertTrue(kernels.isJoinable(matrices, type));
            NDArray expected = columns.length == 1 ? rounded.get(0) : NDArrays.concat(rounded, 1);
            NDArray actual = kernels.joined(matrices, type);
            assertEquals(type, Torch.scalarType(actual));
            assertArrayEquals(floats(expected), floats(actual));
        }
        assertFalse(kernels.isJoinable(List.of(random(type, 2, 2)), type));
        assertFalse(
                kernels.isJoinable(List.of(random(ScalarType.FLOAT32, 2, 2)), ScalarType.FLOAT32));
    }

    /** Gates whose exponentials are infinite or 0. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void gatesFarFromZeroStayFinite(ScalarType type) {
        float[] far = {-1e4f, -100, 100, 1e4f};
        try (NDArray floats = manager.create(far)) {
            NDArray gate = Torch.cast(floats, type);
            NDArray ones = Torch.cast(manager.ones(new Shape(4)), type);
            List<NDArray> gradients = kernels.gatedGradients(List.of(gate, ones), ones);
            float[] xs = floats(gate);
            double[] expected = {0, 0, xs[2], xs[3]};
            requireNear(expected, kernels.gated(List.of(gate, ones)), type, 1);
            requireNear(new double[] {0, 0, 1, 1}, gradients.get(0), type, 1);
            requireNear(expected, gradients.get(1), type, 1);
        }
    }

    /** Views with other strides, or with any first element. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void readsViews(ScalarType type) {
        NDArray turned = random(type, 64, 33);
        NDArray view = turned.transpose();
        NDArray copy = Torch.cast(view, type);
        NDArray all = random(type, 33 * 64 + 1);
        NDArray odd = all.get("1:").reshape(33, 64);
        NDArray weight = random(type, 64);
        assertArrayEquals(
                floats(kernels.normalized(copy, weight, EPSILON)),
                floats(kernels.normalized(view, weight, EPSILON)));
        assertArrayEquals(
                floats(kernels.gated(List.of(copy, Torch.cast(odd, type)))),
                floats(kernels.gated(List.of(view, odd))));
    }
}
