// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import com.sun.jna.Pointer;
import java.lang.reflect.Proxy;
import java.nio.FloatBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

class TorchPropertiesTest {

    private final NDManager manager = NDManager.newBaseManager("PyTorch");

    @AfterEach
    void close() {
        manager.close();
    }

    /**
     * ci/test.sh runs this package with the packaged jar on Java 22 or newer, and sets the
     * property.
     */
    @Test
    void packagedClassesForJava22UseForeignFunctions() {
        assertEquals(Boolean.getBoolean("test.foreign"), AotiTensor.isForeign());
    }

    @Test
    void contiguousArrayTellsItsSizesStridesAndData() {
        NDArray array = manager.arange(24f).reshape(2, 3, 4);
        assertArrayEquals(new long[] {2, 3, 4}, Torch.sizes(array));
        assertArrayEquals(new long[] {12, 4, 1}, Torch.info(array).strides());
        assertEquals(ScalarType.FLOAT32, Torch.scalarType(array));
        assertEquals(Device.cpu(), Torch.device(array));
        assertTrue(Torch.isContiguous(array));
        Pointer data = new Pointer(Torch.dataPointer(array));
        assertArrayEquals(array.toFloatArray(), data.getFloatArray(0, 24));
    }

    @Test
    void transposedSliceTellsItsStridesAndData() {
        NDArray base = manager.arange(24f).reshape(4, 6);
        NDArray array = base.get("1:4, 2:5").transpose();
        assertArrayEquals(new long[] {3, 3}, Torch.sizes(array));
        assertArrayEquals(new long[] {1, 6}, Torch.info(array).strides());
        assertFalse(Torch.isContiguous(array));
        assertEquals(Torch.dataPointer(base) + (6 + 2) * Float.BYTES, Torch.dataPointer(array));
    }

    @Test
    void scalarAndEmptyArray() {
        NDArray scalar = manager.create(5L);
        assertArrayEquals(new long[0], Torch.sizes(scalar));
        assertArrayEquals(new long[0], Torch.info(scalar).strides());
        assertTrue(Torch.isContiguous(scalar));
        assertEquals(5, new Pointer(Torch.dataPointer(scalar)).getLong(0));
        NDArray empty = manager.create(new Shape(3, 0));
        assertArrayEquals(new long[] {3, 0}, Torch.sizes(empty));
        assertTrue(Torch.isContiguous(empty));
        assertEquals(0, Torch.dataPointer(empty));
    }

    @ParameterizedTest
    @EnumSource(
            value = DataType.class,
            names = {"FLOAT32", "FLOAT64", "FLOAT16", "UINT8", "INT32", "INT8", "INT64", "BOOLEAN"})
    void typesOfDjlsArrays(DataType type) {
        NDArray array = manager.zeros(new Shape(2), type);
        String name = type == DataType.BOOLEAN ? "BOOL" : type.name();
        assertEquals(ScalarType.valueOf(name), Torch.scalarType(array));
    }

    @ParameterizedTest
    @EnumSource(ScalarType.class)
    void emptyMakesArraysOfEveryType(ScalarType type) {
        NDArray array = Torch.empty(manager, new Shape(3, 2), type);
        assertEquals(type, Torch.scalarType(array));
        assertArrayEquals(new long[] {3, 2}, Torch.sizes(array));
        assertArrayEquals(new long[] {2, 1}, Torch.info(array).strides());
        assertEquals(Device.cpu(), Torch.device(array));
        assertEquals(manager, array.getManager());
    }

    @Test
    void emptyScalarAndEmptyShape() {
        assertEquals(0, Torch.sizes(Torch.empty(manager, new Shape(), ScalarType.INT8)).length);
        NDArray none = Torch.empty(manager, new Shape(0, 7), ScalarType.BFLOAT16);
        assertArrayEquals(new long[] {0, 7}, Torch.sizes(none));
    }

    @Test
    void djlDoesNotKnowBfloat16() {
        NDArray array = Torch.empty(manager, new Shape(3), ScalarType.BFLOAT16);
        assertEquals(DataType.UNKNOWN, array.getDataType());
    }

    @Test
    void emptyRefusesWrongArguments() {
        assertRefused("manager is null", () -> Torch.empty(null, new Shape(1), ScalarType.INT8));
        assertRefused("shape is null", () -> Torch.empty(manager, null, ScalarType.INT8));
        assertRefused("type is null", () -> Torch.empty(manager, new Shape(1), null));
        assertRefused(
                "negative or unknown",
                () -> Torch.empty(manager, new Shape(2, -1), ScalarType.INT8));
        assertRefused(
                "65 dimensions are too many",
                () -> Torch.empty(manager, new Shape(new long[65]), ScalarType.INT8));
        assertRefused(
                "2^63", () -> Torch.empty(manager, new Shape(1L << 40, 1L << 40), ScalarType.INT8));
        assertRefused(
                "2^63", () -> Torch.empty(manager, new Shape(1L << 60), ScalarType.COMPLEX128));
        NDManager closed = manager.newSubManager();
        closed.close();
        assertRefused(
                "manager is closed", () -> Torch.empty(closed, new Shape(1), ScalarType.INT8));
        try (NDManager capped = manager.newSubManager()) {
            capped.cap();
            assertRefused("capped", () -> Torch.empty(capped, new Shape(1), ScalarType.FLOAT32));
        }
        NDManager foreign = proxy(NDManager.class);
        assertRefused("PyTorch engine", () -> Torch.empty(foreign, new Shape(1), ScalarType.INT8));
    }

    @Test
    void exhaustedMemoryIsAnEngineException() {
        var e =
                assertThrows(
                        ai.djl.engine.EngineException.class,
                        () -> Torch.empty(manager, new Shape(1L << 60), ScalarType.UINT8));
        assertTrue(e.getMessage().contains("Torch.empty"), e.getMessage());
    }

    static List<Consumer<NDArray>> functionsOfOneArray() {
        return List.of(
                Torch::dataPointer,
                Torch::sizes,
                Torch::scalarType,
                Torch::device,
                Torch::isContiguous,
                array -> Torch.cast(array, ScalarType.FLOAT32),
                array -> TorchInPlace.div(array, 2));
    }

    @ParameterizedTest
    @MethodSource("functionsOfOneArray")
    void wrongArraysAreRefused(Consumer<NDArray> function) {
        assertRefused("is null", () -> function.accept(null));
        NDArray closed = manager.zeros(new Shape(2));
        closed.close();
        assertRefused("is closed", () -> function.accept(closed));
        NDArray foreign = proxy(NDArray.class);
        assertRefused("PyTorch engine", () -> function.accept(foreign));
        NDArray strings = manager.create(new String[] {"a"});
        assertRefused("strings", () -> function.accept(strings));
        NDArray sparse =
                manager.createCoo(
                        FloatBuffer.wrap(new float[] {1, 2}),
                        new long[][] {{0, 1}, {1, 0}},
                        new Shape(2, 2));
        assertRefused("sparse", () -> function.accept(sparse));
    }

    private static void assertRefused(String reason, Runnable call) {
        var e = assertThrows(IllegalArgumentException.class, call::run);
        assertTrue(e.getMessage().contains(reason), e.getMessage());
    }

    /** Stands for an object of another engine. */
    private static <T> T proxy(Class<T> type) {
        return type.cast(
                Proxy.newProxyInstance(
                        type.getClassLoader(), new Class<?>[] {type}, (p, method, args) -> null));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {"", "0", "1", "5", "1,1,1", "2,3", "3,1,2", "0,3", "3,0", "2,3,4,5,1,2"})
    void infoEqualsTheSingleGetters(String text) {
        long[] sizes =
                text.isEmpty()
                        ? new long[0]
                        : Arrays.stream(text.split(",")).mapToLong(Long::parseLong).toArray();
        assertInfo(sizes, array -> array);
        if (sizes.length > 1) {
            assertInfo(sizes, NDArray::transpose);
            assertInfo(sizes, array -> array.swapAxes(0, 1));
        }
        if (sizes.length > 0 && sizes[sizes.length - 1] > 1) {
            assertInfo(sizes, array -> array.get("..., 1:"));
        }
    }

    private static void assertInfo(long[] sizes, UnaryOperator<NDArray> change) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = change.apply(manager.zeros(new Shape(sizes), DataType.FLOAT64));
            TensorInfo info = Torch.info(array);
            assertEquals(ScalarType.FLOAT64, info.type());
            assertArrayEquals(Torch.sizes(array), info.sizes());
            assertEquals(Torch.dataPointer(array), info.address());
            assertEquals(array.size(), info.count());
            assertEquals(array.size() * Double.BYTES, info.byteSize());
            assertEquals(Torch.isContiguous(array), info.isContiguous());
            array.close();
            assertThrows(IllegalArgumentException.class, () -> Torch.info(array));
        }
    }

    @Test
    void overlapsAreInMemory() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.zeros(new Shape(4, 6));
            TensorInfo whole = Torch.info(array);
            TensorInfo rows = Torch.info(array.get("1:3"));
            TensorInfo columns = Torch.info(array.get(":, 1:2"));
            assertTrue(whole.overlaps(whole));
            assertTrue(rows.overlaps(whole));
            assertTrue(columns.overlaps(rows));
            assertFalse(rows.overlaps(Torch.info(array.get("3:"))));
            assertFalse(Torch.info(array.get("3:")).overlaps(rows));
            assertFalse(rows.overlaps(Torch.info(array.get("2:2"))));
            assertFalse(whole.overlaps(Torch.info(manager.zeros(new Shape(4, 6)))));
        }
    }
}
