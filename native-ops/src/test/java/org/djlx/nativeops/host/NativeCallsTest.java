// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;

/** The native calls of what operators ask of an array. */
class NativeCallsTest {

    @Test
    void propertiesOfAnArrayNeedFewCalls() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.ones(new Shape(2, 3));
            assertEquals(2, count(() -> Torch.info(array)));
            assertEquals(2, count(() -> Torch.dataPointer(array)));
            assertEquals(2, count(() -> Torch.requiresGradient(array)));
            assertEquals(
                    1, count(() -> Torch.empty(manager, new Shape(2), ScalarType.FLOAT32).close()));
        }
    }

    private static long count(Runnable call) {
        call.run();
        NativeCalls before = NativeCalls.ofThread();
        call.run();
        NativeCalls after = NativeCalls.ofThread();
        assertEquals(before.driver(), after.driver());
        return after.other() - before.other();
    }
}
