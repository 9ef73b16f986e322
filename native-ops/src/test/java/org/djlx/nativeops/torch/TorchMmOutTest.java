// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

class TorchMmOutTest {

    private final NDManager manager = NDManager.newBaseManager("PyTorch");
    private final Random random = new Random(3);

    @AfterEach
    void close() {
        manager.close();
    }

    private NDArray matrix(long rows, long columns, ScalarType type) {
        double[] values = new double[(int) (rows * columns)];
        for (int i = 0; i < values.length; i++) {
            values[i] = random.nextGaussian();
        }
        return Torch.cast(manager.create(values, new Shape(rows, columns)), type);
    }

    /** Checks {@code out = a b} against sums in float64, with the error bound of the type. */
    private static void assertProduct(NDArray out, NDArray a, NDArray b, double unitRoundoff) {
        double[] actual = Torch.cast(out, ScalarType.FLOAT64).toDoubleArray();
        double[] left = Torch.cast(a, ScalarType.FLOAT64).toDoubleArray();
        double[] right = Torch.cast(b, ScalarType.FLOAT64).toDoubleArray();
        int m = (int) Torch.sizes(a)[0];
        int k = (int) Torch.sizes(a)[1];
        int n = (int) Torch.sizes(b)[1];
        assertEquals(m * n, actual.length);
        for (int i = 0; i < m; i++) {
            for (int j = 0; j < n; j++) {
                double sum = 0;
                double magnitude = 0;
                for (int l = 0; l < k; l++) {
                    double product = left[i * k + l] * right[l * n + j];
                    sum += product;
                    magnitude += Math.abs(product);
                }
                // One rounding of the result, and k of a sum in at least float32.
                double bound = 1.01 * unitRoundoff * Math.abs(sum) + k * 0x1p-23 * magnitude;
                if (unitRoundoff < 0x1p-24) {
                    bound = (k + 1) * unitRoundoff * magnitude;
                }
                // float16's subnormal numbers are multiples of 2^-24.
                double least = unitRoundoff == 0x1p-11 ? 0x1p-25 : Double.MIN_VALUE;
                assertEquals(sum, actual[i * n + j], bound + least);
            }
        }
    }

    private static double unitRoundoff(ScalarType type) {
        switch (type) {
            case FLOAT64:
                return 0x1p-53;
            case FLOAT32:
                return 0x1p-24;
            case FLOAT16:
                return 0x1p-11;
            default:
                return 0x1p-8;
        }
    }

    @ParameterizedTest
    @CsvSource({
        "FLOAT32, 1, 1, 1", "FLOAT32, 17, 33, 9", "FLOAT32, 64, 128, 96", "FLOAT32, 1, 300, 5",
        "FLOAT64, 17, 33, 9", "FLOAT64, 3, 1, 7", "FLOAT16, 17, 33, 9", "FLOAT16, 5, 64, 1",
        "BFLOAT16, 17, 33, 9", "BFLOAT16, 1, 64, 5", "BFLOAT16, 64, 128, 96"
    })
    void multiplies(ScalarType type, int m, int k, int n) {
        NDArray a = matrix(m, k, type);
        NDArray b = matrix(k, n, type);
        NDArray out = matrix(m, n, type);
        long address = Torch.dataPointer(out);
        Torch.mmOut(out, a, b);
        assertEquals(address, Torch.dataPointer(out), "written in place");
        assertProduct(out, a, b, unitRoundoff(type));
    }

    @ParameterizedTest
    @EnumSource(
            value = ScalarType.class,
            names = {"FLOAT64", "FLOAT32", "FLOAT16", "BFLOAT16"})
    void takesAnyStrides(ScalarType type) {
        NDArray a = matrix(19, 7, type).transpose();
        NDArray b = matrix(40, 26, type).get("1:39:2, 3:16");
        NDArray transposedOut = matrix(13, 7, type).transpose();
        Torch.mmOut(transposedOut, a, b);
        assertProduct(transposedOut, a, b, unitRoundoff(type));
        NDArray broadcast = matrix(1, 13, type).broadcast(19, 13);
        NDArray base = matrix(30, 60, type);
        NDArray before = Torch.cast(base, ScalarType.FLOAT64);
        NDArray out = base.get("2:16:2, 1:27:2");
        Torch.mmOut(out, a, broadcast);
        assertProduct(out, a, broadcast, unitRoundoff(type));
        // What lies between the elements of out is as it was.
        NDArray after = Torch.cast(base, ScalarType.FLOAT64);
        for (NDArray array : new NDArray[] {before, after}) {
            array.set(new ai.djl.ndarray.index.NDIndex("2:16:2, 1:27:2"), 0);
        }
        assertArrayEquals(before.toDoubleArray(), after.toDoubleArray());
    }

    /** Also of sizes from which on libtorch multiplies by oneDNN. */
    @ParameterizedTest
    @EnumSource(
            value = ScalarType.class,
            names = {"FLOAT64", "FLOAT32", "FLOAT16", "BFLOAT16"})
    void takesAnyStridesOfRowsAndColumns(ScalarType type) {
        List<Integer> sizes = List.of(1, 3, 300);
        for (int m : sizes) {
            for (int k : sizes) {
                for (int n : sizes) {
                    if (m > 1 && k > 1 && n > 1) {
                        continue; // There is no row or column.
                    }
                    for (int forms = 0; forms < 27; forms++) {
                        NDArray a = strided(m, k, type, forms % 3);
                        NDArray b = strided(k, n, type, forms / 3 % 3);
                        NDArray out = strided(m, n, type, forms / 9);
                        Torch.mmOut(out, a, b);
                        assertProduct(out, a, b, unitRoundoff(type));
                    }
                }
            }
        }
    }

    /** A contiguous matrix, columns of a wider one, or rows of a transposed one. */
    private NDArray strided(int rows, int columns, ScalarType type, int form) {
        return switch (form) {
            case 0 -> matrix(rows, columns, type);
            case 1 -> Torch.narrow(matrix(rows, columns + 2, type), 1, 1, columns);
            default -> Torch.narrow(matrix(columns, rows + 2, type).transpose(), 0, 1, rows);
        };
    }

    @Test
    void writesIntoAView() {
        TestMemory block = new TestMemory(4096);
        NDArray out = Torch.view(manager, block.memory, 64, new Shape(8, 9), ScalarType.BFLOAT16);
        NDArray a = matrix(8, 16, ScalarType.BFLOAT16);
        NDArray b = matrix(16, 9, ScalarType.BFLOAT16);
        Torch.mmOut(out, a, b);
        assertProduct(out, a, b, unitRoundoff(ScalarType.BFLOAT16));
        out.close();
        block.memory.close();
    }

    @Test
    void productOverNoElementsIsZero() {
        NDArray out = manager.ones(new Shape(2, 3));
        Torch.mmOut(out, manager.zeros(new Shape(2, 0)), manager.zeros(new Shape(0, 3)));
        assertArrayEquals(new float[6], out.toFloatArray());
        Torch.mmOut(
                manager.zeros(new Shape(0, 3)),
                manager.zeros(new Shape(0, 4)),
                manager.zeros(new Shape(4, 3)));
        Torch.mmOut(
                manager.zeros(new Shape(3, 0)),
                manager.zeros(new Shape(3, 4)),
                manager.zeros(new Shape(4, 0)));
    }

    @Test
    void recordsNoGradient() {
        NDArray a = manager.ones(new Shape(2, 2));
        a.setRequiresGradient(true);
        NDArray out = manager.zeros(new Shape(2, 2));
        boolean mode = JniUtils.isGradMode();
        try {
            JniUtils.setGradMode(true);
            Torch.mmOut(out, a, a);
        } finally {
            JniUtils.setGradMode(mode);
        }
        assertArrayEquals(new float[] {2, 2, 2, 2}, out.toFloatArray());
        assertEquals(false, out.hasGradient());
    }

    @Test
    void wrongShapesAreRefused() {
        assertRefused("[2, 3] is not the product of shapes [2, 4] and [5, 3]", 2, 3, 2, 4, 5, 3);
        assertRefused("is not the product", 3, 3, 2, 4, 4, 3);
        assertRefused("is not the product", 2, 4, 2, 4, 4, 3);
        NDArray matrix = manager.zeros(new Shape(3, 3));
        NDArray vector = manager.zeros(new Shape(3));
        assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(matrix, matrix, vector));
        assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(vector, matrix, matrix));
        assertThrows(
                IllegalArgumentException.class,
                () -> Torch.mmOut(matrix, matrix.reshape(1, 3, 3), matrix));
    }

    private void assertRefused(String reason, int... sizes) {
        var e =
                assertThrows(
                        IllegalArgumentException.class,
                        () ->
                                Torch.mmOut(
                                        manager.zeros(new Shape(sizes[0], sizes[1])),
                                        manager.zeros(new Shape(sizes[2], sizes[3])),
                                        manager.zeros(new Shape(sizes[4], sizes[5]))));
        assertTrue(e.getMessage().contains(reason), e.getMessage());
    }

    @Test
    void wrongTypesAreRefused() {
        NDArray floats = manager.zeros(new Shape(2, 2));
        NDArray doubles = manager.zeros(new Shape(2, 2), DataType.FLOAT64);
        var e =
                assertThrows(
                        IllegalArgumentException.class, () -> Torch.mmOut(floats, floats, doubles));
        assertEquals(
                "the element types differ: out is FLOAT32, a is FLOAT32, b is FLOAT64",
                e.getMessage());
        assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(doubles, floats, floats));
        for (ScalarType type :
                new ScalarType[] {
                    ScalarType.INT32, ScalarType.BOOL, ScalarType.COMPLEX64, ScalarType.FLOAT8_E5M2
                }) {
            NDArray array = Torch.empty(manager, new Shape(2, 2), type);
            assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(array, array, array));
        }
    }

    @Test
    void wrongArraysAreRefused() {
        NDArray matrix = manager.zeros(new Shape(2, 2));
        NDArray closed = manager.zeros(new Shape(2, 2));
        closed.close();
        for (NDArray wrong : new NDArray[] {null, closed}) {
            assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(wrong, matrix, matrix));
            assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(matrix, wrong, matrix));
            assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(matrix, matrix, wrong));
        }
    }
}
