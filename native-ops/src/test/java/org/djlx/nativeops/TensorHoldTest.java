/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import com.sun.jna.Pointer;
import java.util.Arrays;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class TensorHoldTest {

    @ParameterizedTest
    @ValueSource(
            strings = {"", "0", "1", "5", "1,1,1", "2,3", "3,1,2", "0,3", "3,0", "2,3,4,5,1,2"})
    void tellsWhatTorchTells(String text) {
        long[] sizes =
                text.isEmpty()
                        ? new long[0]
                        : Arrays.stream(text.split(",")).mapToLong(Long::parseLong).toArray();
        assertSame(sizes, array -> array);
        if (sizes.length > 1) {
            assertSame(sizes, NDArray::transpose);
            assertSame(sizes, array -> array.swapAxes(0, 1));
        }
        if (sizes.length > 0 && sizes[sizes.length - 1] > 1) {
            assertSame(sizes, array -> array.get("..., 1:"));
        }
    }

    private static void assertSame(long[] sizes, UnaryOperator<NDArray> change) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = change.apply(manager.zeros(new Shape(sizes), DataType.FLOAT64));
            try (TensorHold hold = new TensorHold(array)) {
                assertEquals(Torch.dataPointer(array), hold.address());
                assertEquals(array.size(), hold.count());
                assertEquals(ScalarType.FLOAT64, hold.type());
                assertEquals(Torch.isContiguous(array), hold.isContiguous());
            }
        }
    }

    @Test
    void keepsTheStorageOfAClosedArray() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.create(new float[] {1, 2, 3});
            try (TensorHold hold = new TensorHold(array)) {
                array.close();
                // Would be given the storage's memory if that were free.
                NDArray other = manager.create(new float[] {4, 5, 6});
                float[] values = new Pointer(hold.address()).getFloatArray(0, 3);
                assertArrayEquals(new float[] {1, 2, 3}, values);
                other.close();
            }
        }
    }

    @Test
    void givesTheStorageUpWhenClosed() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.create(new Shape(1 << 20));
            holdAndClose(array, 50_000); // The JVM's compiler takes memory, too.
            long before = CHeap.allocatedBytes();
            holdAndClose(array, 400_000);
            // A handle that is not given up takes 32 bytes.
            long taken = CHeap.allocatedBytes() - before;
            assertTrue(taken < 400_000 * 16, () -> taken + " bytes");
            array.close();
            assertThrows(IllegalArgumentException.class, () -> new TensorHold(array));
        }
    }

    private static void holdAndClose(NDArray array, int times) {
        for (int i = 0; i < times; i++) {
            TensorHold hold = new TensorHold(array);
            hold.close();
            hold.close();
        }
    }
}
