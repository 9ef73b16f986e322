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
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class TorchViewTest {

    private static final int SIZE = 1024;

    private final NDManager manager = NDManager.newBaseManager("PyTorch");
    private final TestMemory block = new TestMemory(SIZE);

    @AfterEach
    void close() {
        manager.close();
        block.memory.close();
        assertEquals(1, block.freed.get());
    }

    private NDArray view(long offset, Shape shape, ScalarType type) {
        return Torch.view(manager, block.memory, offset, shape, type);
    }

    @ParameterizedTest
    @EnumSource(ScalarType.class)
    void viewsOfEveryTypeShareTheBytes(ScalarType type) {
        int offset = 2 * type.itemSize();
        NDArray view = view(offset, new Shape(3, 5), type);
        assertEquals(type, Torch.scalarType(view));
        assertEquals(block.memory.address() + offset, Torch.dataPointer(view));
        assertArrayEquals(new long[] {3, 5}, Torch.sizes(view));
        boolean complex = type.category() == ScalarType.Category.COMPLEX;
        assertEquals(!complex, Torch.isContiguous(view)); // It could be conjugated.
        assertEquals(Device.cpu(), Torch.device(view));
        // Bytes of 0 and 1 are valid elements of every type, bool included.
        int bytes = 15 * type.itemSize();
        for (int i = 0; i < bytes; i++) {
            block.bytes.put(offset + i, (byte) (i * 7 / 3 & 1));
        }
        NDArray copy = Torch.empty(manager, new Shape(3, 5), type);
        Torch.copy(copy, view);
        for (int i = 0; i < bytes; i++) {
            assertEquals((byte) (i * 7 / 3 & 1), TestMemory.bytes(copy).get(i));
        }
    }

    @Test
    void writesGoBothWays() {
        NDArray view = view(8, new Shape(4), ScalarType.FLOAT32);
        block.bytes.putFloat(8, 1.5f).putFloat(12, -2f).putFloat(16, 3f).putFloat(20, 0f);
        assertArrayEquals(new float[] {1.5f, -2f, 3f, 0f}, view.toFloatArray());
        view.muli(2);
        assertEquals(-4f, block.bytes.getFloat(12));
    }

    @Test
    void viewTakesStrides() {
        for (int i = 0; i < 32; i++) {
            block.bytes.putInt(4 * i, i);
        }
        NDArray view =
                Torch.view(
                        manager,
                        block.memory,
                        4,
                        new long[] {2, 3},
                        new long[] {2, 10},
                        ScalarType.INT32);
        assertArrayEquals(new int[] {1, 11, 21, 3, 13, 23}, view.toIntArray());
        assertArrayEquals(new long[] {2, 10}, Torch.info(view).strides());
        assertFalse(Torch.isContiguous(view));
        NDArray repeated =
                Torch.view(
                        manager,
                        block.memory,
                        20,
                        new long[] {3},
                        new long[] {0},
                        ScalarType.INT32);
        assertArrayEquals(new int[] {5, 5, 5}, repeated.toIntArray());
    }

    @Test
    void viewWithoutElementsNeedsNoMemory() {
        assertEquals(0, view(SIZE, new Shape(0), ScalarType.FLOAT32).size());
        assertEquals(0, view(0, new Shape(5, 0, 3), ScalarType.INT64).size());
        long[] strides = {Long.MAX_VALUE, Long.MAX_VALUE};
        Torch.view(manager, block.memory, 0, new long[] {5, 0}, strides, ScalarType.INT8);
        NativeMemory none = new NativeMemory(0, 0, Device.cpu(), () -> {});
        NDArray view = Torch.view(manager, none, 0, new Shape(0, 4), ScalarType.BFLOAT16);
        assertArrayEquals(new long[] {0, 4}, Torch.sizes(view));
        view.close();
        none.close();
    }

    @Test
    void viewOfNoDimensionsIsOneElement() {
        block.bytes.putDouble(16, 2.5);
        assertEquals(2.5, view(16, new Shape(), ScalarType.FLOAT64).getDouble());
    }

    @Test
    void wholeMemoryAndNotOneElementMore() {
        view(0, new Shape(SIZE / 4), ScalarType.FLOAT32);
        view(SIZE - 4, new Shape(1), ScalarType.FLOAT32);
        assertRefused("needs 1028 bytes", 0, new Shape(SIZE / 4 + 1), ScalarType.FLOAT32);
        assertRefused("more than the rest", SIZE, new Shape(1), ScalarType.UINT8);
        assertRefused("more than the rest", SIZE + 1, new Shape(0), ScalarType.UINT8);
        assertRefused("more than the rest", Long.MAX_VALUE, new Shape(8), ScalarType.UINT8);
        assertRefused("more than the rest", -4, new Shape(1), ScalarType.FLOAT32);
        assertRefused("more than the rest", Long.MIN_VALUE, new Shape(0), ScalarType.FLOAT32);
        assertRefused("2^63", 0, new Shape(1L << 62), ScalarType.FLOAT32);
        assertRefused("2^63", 0, new Shape(1L << 32, 1L << 32), ScalarType.FLOAT32);
    }

    @Test
    void stridesBeyondTheMemoryAreRefused() {
        assertRefused("more than the rest", new long[] {2, 2}, new long[] {SIZE - 1, 1});
        assertRefused("2^63", new long[] {3, 2}, new long[] {Long.MAX_VALUE / 2, 5});
        assertRefused("negative", new long[] {2}, new long[] {-1});
        assertRefused("negative", new long[] {-2}, new long[] {1});
        assertRefused("1 strides", new long[] {2, 2}, new long[] {1});
        assertRefused("sizes are null", null, new long[] {1});
        assertRefused("strides are null", new long[] {1}, null);
        assertRefused("65 dimensions are too many", new long[65], new long[65]);
        assertEquals(
                1,
                Torch.view(
                                manager,
                                block.memory,
                                0,
                                java.util.stream.LongStream.generate(() -> 1).limit(64).toArray(),
                                new long[64],
                                ScalarType.UINT8)
                        .size());
    }

    private void assertRefused(String reason, long[] sizes, long[] strides) {
        var e =
                assertThrows(
                        IllegalArgumentException.class,
                        () ->
                                Torch.view(
                                        manager,
                                        block.memory,
                                        0,
                                        sizes,
                                        strides,
                                        ScalarType.UINT8));
        assertTrue(e.getMessage().contains(reason), e.getMessage());
    }

    @ParameterizedTest
    @EnumSource(ScalarType.class)
    void misalignedOffsetsAreRefused(ScalarType type) {
        for (int offset = 1; offset < type.itemSize(); offset++) {
            assertRefused("not aligned", offset, new Shape(1), type);
        }
    }

    @Test
    void wrongArgumentsAreRefused() {
        assertRefused("shape is null", 0, null, ScalarType.INT8);
        assertRefused("type is null", 0, new Shape(1), null);
        assertRefused("negative or unknown", 0, new Shape(-1), ScalarType.INT8);
        assertThrows(
                IllegalArgumentException.class,
                () -> Torch.view(manager, null, 0, new Shape(1), ScalarType.INT8));
        assertThrows(
                IllegalArgumentException.class,
                () -> Torch.view(null, block.memory, 0, new Shape(1), ScalarType.INT8));
        NDManager closed = manager.newSubManager();
        closed.close();
        assertThrows(
                IllegalArgumentException.class,
                () -> Torch.view(closed, block.memory, 0, new Shape(1), ScalarType.INT8));
        try (NDManager capped = manager.newSubManager()) {
            capped.cap();
            assertThrows(
                    IllegalArgumentException.class,
                    () -> Torch.view(capped, block.memory, 0, new Shape(1), ScalarType.INT8));
        }
        // None of these kept a reference: close() asserts that the memory is freed.
    }

    private void assertRefused(String reason, long offset, Shape shape, ScalarType type) {
        var e = assertThrows(IllegalArgumentException.class, () -> view(offset, shape, type));
        assertTrue(e.getMessage().contains(reason), e.getMessage());
    }

    @Test
    void closedMemoryHasNoNewViews() {
        NDArray view = view(0, new Shape(1), ScalarType.INT8);
        block.memory.close();
        assertRefused("closed", 0, new Shape(1), ScalarType.INT8);
        view.close();
    }

    @Test
    void gpuMemoryNeedsAGpu() {
        NativeMemory memory = new NativeMemory(4096, 64, Device.gpu(99), () -> {});
        var e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> Torch.view(manager, memory, 0, new Shape(1), ScalarType.INT8));
        assertTrue(e.getMessage().contains("gpu(99)"), e.getMessage());
    }

    @Test
    void memoryOutlivesItsCreator() {
        NDArray view = view(0, new Shape(2), ScalarType.INT32);
        block.memory.close();
        assertEquals(0, block.freed.get());
        view.set(new int[] {7, 8});
        assertArrayEquals(new int[] {7, 8}, view.toIntArray());
        view.close();
        assertEquals(1, block.freed.get());
        view.close();
        assertEquals(1, block.freed.get());
    }

    @Test
    void memoryOutlivesItsViews() {
        NDArray view = view(0, new Shape(2), ScalarType.INT32);
        NDArray other = view(0, new Shape(2), ScalarType.INT32);
        view.close();
        view.close();
        other.close();
        assertEquals(0, block.freed.get());
        block.memory.close();
        assertEquals(1, block.freed.get());
    }

    @Test
    void closingTheManagerClosesViews() {
        NDManager scope = manager.newSubManager();
        NDArray view = Torch.view(scope, block.memory, 0, new Shape(2), ScalarType.INT32);
        Torch.view(scope, block.memory, 0, new Shape(2), ScalarType.INT32);
        block.memory.close();
        view.close();
        assertEquals(0, block.freed.get());
        scope.close();
        assertEquals(1, block.freed.get());
    }

    @Test
    void viewsMoveBetweenManagers() {
        NDManager from = manager.newSubManager();
        NDManager to = manager.newSubManager();
        NDArray attached = Torch.view(from, block.memory, 0, new Shape(2), ScalarType.INT32);
        NDArray detached = Torch.view(from, block.memory, 0, new Shape(2), ScalarType.INT32);
        attached.attach(to);
        detached.detach();
        block.memory.close();
        from.close();
        assertArrayEquals(new long[] {2}, Torch.sizes(attached));
        to.close();
        assertThrows(IllegalArgumentException.class, () -> Torch.sizes(attached));
        assertEquals(0, block.freed.get());
        detached.close();
        assertEquals(1, block.freed.get());
    }

    @Test
    void temporarilyAttachedViewsReturn() {
        NDArray view = view(0, new Shape(2), ScalarType.INT32);
        NDManager scope = manager.newSubManager();
        view.tempAttach(scope);
        scope.close();
        assertArrayEquals(new long[] {2}, Torch.sizes(view));
        assertEquals(manager, view.getManager());
        block.memory.close();
        view.close();
        assertEquals(1, block.freed.get());
    }

    @Test
    void memoryOfInternedViewsStays() {
        TestMemory leaked = new TestMemory(8);
        leaked.bytes.putInt(0, 41).putInt(4, 42);
        NDArray array = manager.create(new int[] {1, 2});
        NDArray view = Torch.view(manager, leaked.memory, 0, new Shape(2), ScalarType.INT32);
        array.intern(view);
        leaked.memory.close();
        assertEquals(0, leaked.freed.get());
        assertArrayEquals(new int[] {41, 42}, array.toIntArray());
    }

    @Test
    void subViewsShareTheMemory() {
        NDArray view = view(0, new Shape(4), ScalarType.INT32);
        NDArray slice = view.get("1:3");
        block.bytes.putInt(4, 9).putInt(8, 10);
        assertArrayEquals(new int[] {9, 10}, slice.toIntArray());
        assertEquals(block.memory.address() + 4, Torch.dataPointer(slice));
        slice.close();
        block.memory.close();
        assertEquals(0, block.freed.get());
        view.close();
        assertEquals(1, block.freed.get());
    }
}
