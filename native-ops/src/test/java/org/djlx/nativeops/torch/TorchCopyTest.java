// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

class TorchCopyTest {

    private final NDManager manager = NDManager.newBaseManager("PyTorch");

    @AfterEach
    void close() {
        manager.close();
    }

    @Test
    void bfloat16RoundsToNearestEven() {
        Random random = new Random(1);
        float[] values = new float[10_000];
        for (int i = 0; i < values.length; i++) {
            do {
                values[i] = Float.intBitsToFloat(random.nextInt());
            } while (Float.isNaN(values[i]));
        }
        float[] special = {
            0f,
            -0f,
            1f,
            Float.MAX_VALUE,
            Float.MIN_VALUE,
            Float.POSITIVE_INFINITY,
            -1.00390625f,
            1.00390625f,
            1.01171875f,
            Float.intBitsToFloat(0x3f808001)
        };
        System.arraycopy(special, 0, values, 0, special.length);
        NDArray cast = Torch.cast(manager.create(values), ScalarType.BFLOAT16);
        assertEquals(ScalarType.BFLOAT16, Torch.scalarType(cast));
        ByteBuffer bytes = TestMemory.bytes(cast);
        float[] expected = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            short bits = TestFloats.toBfloat16(values[i]);
            assertEquals(bits, bytes.getShort(2 * i), () -> "bfloat16");
            expected[i] = TestFloats.fromBfloat16(bits);
        }
        assertArrayEquals(expected, Torch.cast(cast, ScalarType.FLOAT32).toFloatArray());
        NDArray nan = Torch.cast(manager.create(new float[] {Float.NaN}), ScalarType.BFLOAT16);
        assertTrue(Float.isNaN(TestFloats.fromBfloat16(TestMemory.bytes(nan).getShort(0))));
    }

    @Test
    void float16RoundsToNearestEven() {
        Random random = new Random(2);
        float[] values = new float[200];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (random.nextGaussian() * Math.scalb(1.0, random.nextInt(30) - 16));
        }
        values[0] = 1 + 1f / 2048;
        values[1] = 1 + 3f / 2048;
        ByteBuffer bytes = TestMemory.bytes(Torch.cast(manager.create(values), ScalarType.FLOAT16));
        for (int i = 0; i < values.length; i++) {
            assertEquals(TestFloats.toFloat16(values[i]), bytes.getShort(2 * i));
        }
    }

    /** Every finite float8 number, decoded here, casts to float32 and back unchanged. */
    @ParameterizedTest
    @CsvSource({
        "FLOAT8_E5M2, 5, 2, 15, 0x7c",
        "FLOAT8_E4M3FN, 4, 3, 7, 0x7f",
        "FLOAT8_E5M2FNUZ, 5, 2, 16, 0x80",
        "FLOAT8_E4M3FNUZ, 4, 3, 8, 0x80"
    })
    void float8(ScalarType type, int exponentBits, int fractionBits, int bias, int finite) {
        boolean negativeZero = finite < 0x80;
        TestMemory block = new TestMemory(256);
        float[] expected = new float[2 * finite];
        int count = 0;
        for (int bits = 0; bits < finite; bits++) {
            for (int sign = 0; sign <= 0x80; sign += 0x80) {
                if (bits > 0 || sign == 0 || negativeZero) {
                    block.bytes.put(count, (byte) (bits | sign));
                    expected[count++] =
                            (float)
                                    TestFloats.decode(
                                            bits | sign, exponentBits, fractionBits, bias);
                }
            }
        }
        NDArray view = Torch.view(manager, block.memory, 0, new Shape(count), type);
        NDArray floats = Torch.cast(view, ScalarType.FLOAT32);
        assertArrayEquals(java.util.Arrays.copyOf(expected, count), floats.toFloatArray());
        ByteBuffer back = TestMemory.bytes(Torch.cast(floats, type));
        for (int i = 0; i < count; i++) {
            assertEquals(block.bytes.get(i), back.get(i));
        }
        block.memory.close();
    }

    @Test
    void float8RoundsToNearestEven() {
        // Halfway between 16 and 18 and between 18 and 20, whose fractions end in 0, 1, 0.
        NDArray cast =
                Torch.cast(
                        manager.create(new float[] {17f, 19f, 17.01f, -18.99f, 448f}),
                        ScalarType.FLOAT8_E4M3FN);
        assertArrayEquals(
                new float[] {16f, 20f, 18f, -18f, 448f},
                Torch.cast(cast, ScalarType.FLOAT32).toFloatArray());
    }

    @ParameterizedTest
    @EnumSource(ScalarType.class)
    void everyTypeCastsToEveryType(ScalarType from) {
        NDArray ones = Torch.cast(manager.ones(new Shape(2, 3)), from);
        for (ScalarType to : ScalarType.values()) {
            NDArray cast = Torch.cast(ones, to);
            assertEquals(to, Torch.scalarType(cast));
            assertArrayEquals(
                    new float[] {1, 1, 1, 1, 1, 1},
                    Torch.cast(cast, ScalarType.FLOAT32).toFloatArray(),
                    () -> from + " to " + to);
        }
    }

    @Test
    void castToAnIntegerTruncates() {
        NDArray cast = Torch.cast(manager.create(new float[] {1.9f, -1.9f}), ScalarType.INT32);
        assertArrayEquals(new int[] {1, -1}, cast.toIntArray());
    }

    @Test
    void castOfTransposedArrayIsContiguous() {
        NDArray array = manager.arange(6f).reshape(2, 3).transpose();
        NDArray cast = Torch.cast(array, ScalarType.FLOAT64);
        assertTrue(Torch.isContiguous(cast));
        assertArrayEquals(new double[] {0, 3, 1, 4, 2, 5}, cast.toDoubleArray());
        assertEquals(array.getManager(), cast.getManager());
    }

    @Test
    void castToTheSameTypeCopies() {
        NDArray array = manager.create(new float[] {1, 2});
        NDArray cast = Torch.cast(array, ScalarType.FLOAT32);
        array.muli(5);
        assertArrayEquals(new float[] {1, 2}, cast.toFloatArray());
    }

    @Test
    void castRefusesNull() {
        assertThrows(
                IllegalArgumentException.class,
                () -> Torch.cast(manager.zeros(new Shape(1)), null));
    }

    @Test
    void copyConvertsAndRespectsStrides() {
        NDArray base = manager.zeros(new Shape(3, 4), DataType.INT64);
        NDArray dst = base.get("1:3, 1:4").transpose();
        Torch.copy(dst, manager.create(new float[] {1, 2, 3, 4, 5, 6}, new Shape(3, 2)));
        assertArrayEquals(new long[] {0, 0, 0, 0, 0, 1, 3, 5, 0, 2, 4, 6}, base.toLongArray());
    }

    @Test
    void copyOfNothingAndOfScalars() {
        Torch.copy(manager.create(new Shape(0, 2)), manager.create(new Shape(0, 2)));
        NDArray scalar = manager.create(0f);
        Torch.copy(scalar, manager.create(3L));
        assertEquals(3f, scalar.getFloat());
    }

    @Test
    void copyRefusesWrongArguments() {
        NDArray array = manager.zeros(new Shape(2, 3));
        var e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> Torch.copy(array, manager.zeros(new Shape(3))));
        assertEquals(
                "the shapes differ: the destination is [2, 3], the source is [3]", e.getMessage());
        assertThrows(IllegalArgumentException.class, () -> Torch.copy(null, array));
        assertThrows(IllegalArgumentException.class, () -> Torch.copy(array, null));
        NDArray closed = manager.zeros(new Shape(2, 3));
        closed.close();
        assertThrows(IllegalArgumentException.class, () -> Torch.copy(array, closed));
        assertThrows(IllegalArgumentException.class, () -> Torch.copy(closed, array));
    }

    /** Libtorch's operators that go element by element take any number of dimensions. */
    @ParameterizedTest
    @ValueSource(ints = {64, 65, 100})
    void dimensionsMayBeMany(int dimensions) {
        long[] sizes = new long[dimensions];
        Arrays.fill(sizes, 1);
        sizes[dimensions - 1] = 3;
        NDArray source = manager.create(new float[] {1, 2, 3}).reshape(new Shape(sizes));
        NDArray target = manager.zeros(new Shape(3)).reshape(new Shape(sizes));
        Torch.copy(target, source);
        TorchInPlace.add(target, source);
        assertArrayEquals(new float[] {2, 4, 6}, target.toFloatArray());
        sizes[dimensions - 1] = 1;
        sizes[0] = 3;
        NDArray other = manager.zeros(new Shape(3)).reshape(new Shape(sizes));
        assertThrows(IllegalArgumentException.class, () -> Torch.copy(other, source));
    }

    @Test
    void copyToAnArrayWithGradientFailsInGradientMode() {
        NDArray parameter = manager.zeros(new Shape(2));
        parameter.setRequiresGradient(true);
        NDArray ones = manager.ones(new Shape(2));
        boolean mode = JniUtils.isGradMode();
        try {
            JniUtils.setGradMode(true);
            var e = assertThrows(EngineException.class, () -> Torch.copy(parameter, ones));
            assertTrue(e.getMessage().contains("Torch.copy"), e.getMessage());
            JniUtils.setGradMode(false);
            Torch.copy(parameter, ones);
        } finally {
            JniUtils.setGradMode(mode);
        }
        assertArrayEquals(new float[] {1, 1}, parameter.toFloatArray());
    }
}
