// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Ranges of arrays. */
class TorchNarrowTest {

    private final NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
    private final NDArray array = manager.arange(24f).reshape(2, 3, 4);

    @AfterEach
    void close() {
        manager.close();
    }

    @Test
    void rangeEqualsThatOfAnIndex() {
        assertArrayEquals(
                array.get("1:2").toFloatArray(), Torch.narrow(array, 0, 1, 1).toFloatArray());
        NDArray rows = Torch.narrow(array, 1, 1, 2);
        assertEquals(new Shape(2, 2, 4), rows.getShape());
        assertArrayEquals(array.get(":, 1:3").toFloatArray(), rows.toFloatArray());
        assertSame(manager, rows.getManager());
        assertEquals(new Shape(2, 3, 0), Torch.narrow(array, 2, 4, 0).getShape());
    }

    @Test
    void narrowSharesTheElements() {
        NDArray columns = Torch.narrow(array, 2, 1, 3);
        assertEquals(Torch.dataPointer(array) + Float.BYTES, Torch.dataPointer(columns));
        columns.muli(0);
        assertEquals(0 + 4 + 8 + 12 + 16 + 20, array.sum().getFloat());
    }

    @Test
    void rangeOutsideOfTheArrayIsRefused() {
        long[][] wrong = {{-1, 0, 1}, {3, 0, 1}, {1, -1, 1}, {1, 0, 4}, {1, 3, 1}, {1, 0, -1}};
        for (long[] range : wrong) {
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> Torch.narrow(array, (int) range[0], range[1], range[2]))
                            .getMessage();
            assertTrue(message.contains("[2, 3, 4]"), message);
        }
    }
}
