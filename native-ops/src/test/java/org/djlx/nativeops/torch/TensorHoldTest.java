// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.sun.jna.Pointer;
import org.djlx.nativeops.host.CHeap;
import org.junit.jupiter.api.Test;

class TensorHoldTest {

    @Test
    void keepsTheStorageOfAClosedArray() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.create(new float[] {1, 2, 3});
            long address = Torch.dataPointer(array);
            TensorHold hold = new TensorHold(array);
            array.close();
            // Would be given the storage's memory if that were free.
            NDArray other = manager.create(new float[] {4, 5, 6});
            float[] values = new Pointer(address).getFloatArray(0, 3);
            assertArrayEquals(new float[] {1, 2, 3}, values);
            other.close();
            hold.close();
        }
    }

    @Test
    void givesTheStorageUpWhenClosed() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.create(new Shape(1 << 20));
            CHeap.assertNoLeak(
                    50_000,
                    () -> {
                        TensorHold hold = new TensorHold(array);
                        hold.close();
                        hold.close();
                    });
            array.close();
            assertThrows(IllegalArgumentException.class, () -> new TensorHold(array));
            assertThrows(IllegalArgumentException.class, () -> TensorHold.ofChecked(array));
        }
    }
}
