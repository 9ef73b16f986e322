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
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.DoubleBinaryOperator;
import org.djlx.nativeops.host.CHeap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class TorchInPlaceTest {

    /** The operators and what they mean. */
    enum Operator {
        ADD(TorchInPlace::add, Double::sum),
        MUL(TorchInPlace::mul, (a, b) -> a * b),
        MIN(TorchInPlace::min, Math::min),
        MAX(TorchInPlace::max, Math::max);

        private final BiConsumer<NDArray, NDArray> operator;
        private final DoubleBinaryOperator reference;

        Operator(BiConsumer<NDArray, NDArray> operator, DoubleBinaryOperator reference) {
            this.operator = operator;
            this.reference = reference;
        }

        void apply(NDArray acc, NDArray other) {
            operator.accept(acc, other);
        }

        double[] expected(double[] acc, double[] other) {
            double[] result = new double[acc.length];
            for (int i = 0; i < result.length; i++) {
                result[i] = reference.applyAsDouble(acc[i], other[i]);
            }
            return result;
        }
    }

    private static final double[] LEFT = {1, -2, 3, 4, 0, 6, 7, -8, 9};
    private static final double[] RIGHT = {2, 2, -3, 1, 5, 6, -1, 2, 0};

    private final NDManager manager = NDManager.newBaseManager("PyTorch");

    @AfterEach
    void close() {
        manager.close();
    }

    private NDArray array(double[] values, ScalarType type) {
        return Torch.cast(manager.create(values), type);
    }

    private static double[] values(NDArray array) {
        return Torch.cast(array, ScalarType.FLOAT64).toDoubleArray();
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void everyTypeWithItself(Operator operator) {
        for (ScalarType type :
                new ScalarType[] {
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.INT8,
                    ScalarType.INT16,
                    ScalarType.INT32,
                    ScalarType.INT64
                }) {
            NDArray acc = array(LEFT, type);
            long address = Torch.dataPointer(acc);
            operator.apply(acc, array(RIGHT, type));
            assertArrayEquals(operator.expected(LEFT, RIGHT), values(acc), type::name);
            assertEquals(type, Torch.scalarType(acc));
            assertEquals(address, Torch.dataPointer(acc));
        }
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void typesPromote(Operator operator) {
        ScalarType[][] pairs = {
            {ScalarType.FLOAT32, ScalarType.BFLOAT16},
            {ScalarType.FLOAT32, ScalarType.FLOAT16},
            {ScalarType.BFLOAT16, ScalarType.FLOAT32},
            {ScalarType.FLOAT16, ScalarType.INT64},
            {ScalarType.INT32, ScalarType.INT8},
            {ScalarType.INT8, ScalarType.INT64}
        };
        for (ScalarType[] pair : pairs) {
            NDArray acc = array(LEFT, pair[0]);
            operator.apply(acc, array(RIGHT, pair[1]));
            assertArrayEquals(operator.expected(LEFT, RIGHT), values(acc));
            assertEquals(pair[0], Torch.scalarType(acc));
        }
    }

    @Test
    void bfloat16AddendsKeepFloat32Sums() {
        NDArray acc = array(new double[] {1}, ScalarType.FLOAT32);
        NDArray small = array(new double[] {0x1p-12}, ScalarType.BFLOAT16);
        for (int i = 0; i < 8; i++) {
            TorchInPlace.add(acc, small);
        }
        assertEquals(1 + 8 * 0x1p-12, values(acc)[0]);
    }

    @Test
    void bfloat16SumsRoundOnce() {
        float[] left = new float[1001];
        float[] right = new float[left.length];
        for (int i = 0; i < left.length; i++) {
            left[i] = TestFloats.fromBfloat16(TestFloats.toBfloat16((float) Math.sin(i)));
            right[i] = TestFloats.fromBfloat16(TestFloats.toBfloat16((float) Math.cos(i * i)));
        }
        NDArray acc = Torch.cast(manager.create(left), ScalarType.BFLOAT16);
        TorchInPlace.add(acc, Torch.cast(manager.create(right), ScalarType.BFLOAT16));
        for (int i = 0; i < left.length; i++) {
            assertEquals(
                    TestFloats.toBfloat16(left[i] + right[i]),
                    TestMemory.bytes(acc).getShort(2 * i));
        }
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void takesAnyStrides(Operator operator) {
        NDArray base = manager.create(LEFT, new Shape(3, 3));
        NDArray other = manager.create(RIGHT, new Shape(3, 3)).transpose();
        operator.apply(base.transpose(), other);
        double[] expected = operator.expected(LEFT, RIGHT);
        assertArrayEquals(expected, values(base));
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void emptyArraysAndScalars(Operator operator) {
        operator.apply(manager.zeros(new Shape(0, 3)), manager.zeros(new Shape(0, 3)));
        NDArray scalar = manager.create(5f);
        operator.apply(scalar, manager.create(7f));
        assertArrayEquals(operator.expected(new double[] {5}, new double[] {7}), values(scalar));
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void anArrayWithItself(Operator operator) {
        NDArray acc = manager.create(LEFT);
        operator.apply(acc, acc);
        assertArrayEquals(operator.expected(LEFT, LEFT), values(acc));
    }

    @Test
    void minAndMaxPropagateNan() {
        NDArray acc = manager.create(new double[] {Double.NaN, 1});
        NDArray other = manager.create(new double[] {1, Double.NaN});
        TorchInPlace.min(acc, other);
        assertTrue(Double.isNaN(values(acc)[0]) && Double.isNaN(values(acc)[1]));
    }

    @Test
    void addOfBooleansIsOrAndMinIsAnd() {
        boolean[] both = {false, false, true, true};
        NDArray other = manager.create(new boolean[] {false, true, false, true});
        NDArray acc = manager.create(both);
        TorchInPlace.add(acc, other);
        assertArrayEquals(new boolean[] {false, true, true, true}, acc.toBooleanArray());
        acc = manager.create(both);
        TorchInPlace.min(acc, other);
        assertArrayEquals(new boolean[] {false, false, false, true}, acc.toBooleanArray());
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void wrongTypesAreRefused(Operator operator) {
        NDArray ints = manager.zeros(new Shape(2), DataType.INT32);
        NDArray floats = manager.zeros(new Shape(2));
        NDArray bools = manager.zeros(new Shape(2), DataType.BOOLEAN);
        NDArray complex = Torch.cast(floats, ScalarType.COMPLEX64);
        NDArray float8 = Torch.cast(floats, ScalarType.FLOAT8_E5M2);
        assertRefused("FLOAT32 cannot be stored in acc of INT32", operator, ints, floats);
        assertRefused("INT32 cannot be stored in acc of BOOL", operator, bools, ints);
        assertRefused("COMPLEX64 cannot be stored in acc of FLOAT32", operator, floats, complex);
        assertRefused(
                "arithmetic does not support the element type FLOAT8_E5M2",
                operator,
                floats,
                float8);
        assertRefused(
                "arithmetic does not support the element type FLOAT8_E5M2",
                operator,
                float8,
                floats);
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void wrongArraysAreRefused(Operator operator) {
        NDArray array = manager.zeros(new Shape(2, 3));
        NDArray closed = manager.zeros(new Shape(2, 3));
        closed.close();
        assertRefused("acc is null", operator, null, array);
        assertRefused("other is null", operator, array, null);
        assertRefused("acc is closed", operator, closed, array);
        assertRefused("other is closed", operator, array, closed);
        assertRefused("acc is [2, 3], other is [3]", operator, array, manager.zeros(new Shape(3)));
    }

    private static void assertRefused(
            String reason, Operator operator, NDArray acc, NDArray other) {
        var e = assertThrows(IllegalArgumentException.class, () -> operator.apply(acc, other));
        assertTrue(e.getMessage().contains(reason), e.getMessage());
    }

    @Test
    void complexNumbersHaveNoOrder() {
        NDArray complex = Torch.cast(manager.ones(new Shape(2)), ScalarType.COMPLEX64);
        assertRefused("type COMPLEX64", Operator.MIN, complex, complex);
        assertRefused("type COMPLEX64", Operator.MAX, complex, complex);
        TorchInPlace.add(complex, complex);
        assertArrayEquals(new double[] {2, 2}, values(complex));
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void operatorsThatLibtorchLacksThrowEngineExceptions(Operator operator) {
        NDArray acc = Torch.cast(manager.ones(new Shape(2)), ScalarType.UINT16);
        NDArray other = Torch.cast(manager.ones(new Shape(2)), ScalarType.INT32);
        var e = assertThrows(EngineException.class, () -> operator.apply(acc, other));
        assertTrue(e.getMessage().startsWith("TorchInPlace."), e.getMessage());
    }

    @ParameterizedTest
    @EnumSource(Operator.class)
    void parametersAreNotChangedInGradientMode(Operator operator) {
        NDArray parameter = manager.ones(new Shape(2));
        parameter.setRequiresGradient(true);
        NDArray other = manager.full(new Shape(2), 3);
        boolean mode = JniUtils.isGradMode();
        try {
            JniUtils.setGradMode(true);
            assertThrows(EngineException.class, () -> operator.apply(parameter, other));
            assertThrows(EngineException.class, () -> TorchInPlace.div(parameter, 2));
            assertArrayEquals(new float[] {1, 1}, parameter.toFloatArray());
            JniUtils.setGradMode(false);
            operator.apply(parameter, other);
        } finally {
            JniUtils.setGradMode(mode);
        }
        assertArrayEquals(
                operator.expected(new double[] {1, 1}, new double[] {3, 3}), values(parameter));
    }

    @ParameterizedTest
    @EnumSource(
            value = ScalarType.class,
            names = {"FLOAT64", "FLOAT32", "FLOAT16", "BFLOAT16"})
    void divides(ScalarType type) {
        NDArray acc = array(LEFT, type);
        TorchInPlace.div(acc, 3);
        float[] quotients = new float[LEFT.length];
        double[] expected = new double[LEFT.length];
        for (int i = 0; i < LEFT.length; i++) {
            quotients[i] = (float) LEFT[i] / 3;
            expected[i] = LEFT[i] / 3;
        }
        if (type != ScalarType.FLOAT64) {
            expected = values(Torch.cast(manager.create(quotients), type));
        }
        assertArrayEquals(expected, values(acc));
        assertEquals(type, Torch.scalarType(acc));
    }

    @ParameterizedTest
    @EnumSource(
            value = ScalarType.class,
            names = {"FLOAT64", "FLOAT32", "FLOAT16", "BFLOAT16"})
    void multipliesByANumber(ScalarType type) {
        NDArray acc = array(LEFT, type);
        TorchInPlace.mul(acc, 0.3);
        float[] products = new float[LEFT.length];
        double[] expected = new double[LEFT.length];
        for (int i = 0; i < LEFT.length; i++) {
            products[i] = (float) LEFT[i] * 0.3f;
            expected[i] = LEFT[i] * 0.3;
        }
        if (type != ScalarType.FLOAT64) {
            expected = values(Torch.cast(manager.create(products), type));
        }
        assertArrayEquals(expected, values(acc));
        assertEquals(type, Torch.scalarType(acc));
    }

    @ParameterizedTest
    @EnumSource(
            value = ScalarType.class,
            names = {"INT64", "INT32", "INT16", "INT8", "UINT8"})
    void bitOperatorsOnIntegers(ScalarType type) {
        double[] left = {0, 1, 6, 12, 127, 85};
        double[] right = {3, 1, 5, 10, 64, 42};
        assertBits(TorchInPlace::bitAnd, (a, b) -> (long) a & (long) b, left, right, type);
        assertBits(TorchInPlace::bitOr, (a, b) -> (long) a | (long) b, left, right, type);
        assertBits(TorchInPlace::bitXor, (a, b) -> (long) a ^ (long) b, left, right, type);
    }

    @Test
    void bitOperatorsTakeBooleans() {
        double[] left = {0, 0, 1, 1};
        double[] right = {0, 1, 0, 1};
        ScalarType type = ScalarType.BOOL;
        assertBits(TorchInPlace::bitAnd, (a, b) -> (long) a & (long) b, left, right, type);
        assertBits(TorchInPlace::bitOr, (a, b) -> (long) a | (long) b, left, right, type);
        assertBits(TorchInPlace::bitXor, (a, b) -> (long) a ^ (long) b, left, right, type);
    }

    private void assertBits(
            BiConsumer<NDArray, NDArray> operator,
            DoubleBinaryOperator reference,
            double[] left,
            double[] right,
            ScalarType type) {
        NDArray acc = array(left, type);
        long address = Torch.dataPointer(acc);
        operator.accept(acc, array(right, type));
        double[] expected = new double[left.length];
        for (int i = 0; i < expected.length; i++) {
            expected[i] = reference.applyAsDouble(left[i], right[i]);
        }
        assertArrayEquals(expected, values(acc), type::name);
        assertEquals(type, Torch.scalarType(acc));
        assertEquals(address, Torch.dataPointer(acc));
    }

    @ParameterizedTest
    @EnumSource(
            value = ScalarType.class,
            names = {"FLOAT64", "FLOAT32", "BFLOAT16", "COMPLEX64", "FLOAT8_E4M3FN"})
    void otherTypesHaveNoBits(ScalarType type) {
        NDArray acc = Torch.empty(manager, new Shape(2), type);
        for (BiConsumer<NDArray, NDArray> operator :
                List.<BiConsumer<NDArray, NDArray>>of(
                        TorchInPlace::bitAnd, TorchInPlace::bitOr, TorchInPlace::bitXor)) {
            var e = assertThrows(IllegalArgumentException.class, () -> operator.accept(acc, acc));
            assertTrue(e.getMessage().contains(type.name()), e.getMessage());
        }
    }

    @Test
    void dividesScalarsAndByZero() {
        NDArray scalar = manager.create(5f);
        TorchInPlace.div(scalar, 4);
        assertEquals(1.25f, scalar.getFloat());
        TorchInPlace.div(scalar, 0);
        assertEquals(Float.POSITIVE_INFINITY, scalar.getFloat());
        TorchInPlace.div(manager.zeros(new Shape(0)), 2);
    }

    @ParameterizedTest
    @EnumSource(
            value = ScalarType.class,
            names = {"INT32", "UINT8", "BOOL", "COMPLEX64", "FLOAT8_E4M3FN"})
    void otherTypesAreNotScaled(ScalarType type) {
        NDArray acc = Torch.empty(manager, new Shape(2), type);
        var refused = assertThrows(IllegalArgumentException.class, () -> TorchInPlace.mul(acc, 2));
        assertTrue(refused.getMessage().contains(type.name()), refused.getMessage());
        var e = assertThrows(IllegalArgumentException.class, () -> TorchInPlace.div(acc, 2));
        assertTrue(e.getMessage().contains(type.name()), e.getMessage());
    }

    @Test
    @Tag("slow")
    void operatorsDoNotLeak() {
        NDArray acc = manager.create(LEFT);
        NDArray other = manager.create(RIGHT);
        CHeap.assertNoLeak(
                50_000,
                () -> {
                    TorchInPlace.min(acc, other);
                    TorchInPlace.max(acc, other);
                    TorchInPlace.div(acc, 1);
                    Torch.cast(acc, ScalarType.BFLOAT16).close();
                });
    }

    @Test
    void operatorsCountWhatTheyWrite() {
        NDArray array = manager.create(new float[] {1, 2, 3});
        long before = Torch.version(array);
        array.add(1).close();
        assertEquals(before, Torch.version(array), "nothing was written");
        array.addi(1);
        assertEquals(before + 1, Torch.version(array));
        try (NDArray view = array.reshape(3, 1)) {
            view.muli(2);
        }
        assertEquals(before + 2, Torch.version(array), "a view has the same memory");
    }
}
