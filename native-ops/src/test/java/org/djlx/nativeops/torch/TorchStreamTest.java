// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import java.util.List;
import java.util.function.Consumer;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class TorchStreamTest {

    static List<Consumer<Device>> functions() {
        return List.of(
                Torch::currentCudaStream, device -> Torch.cudaStreamGuard(device, 0).close());
    }

    @ParameterizedTest
    @MethodSource("functions")
    void devicesWithoutStreamsAreRefused(Consumer<Device> function) {
        assertRefused("device is null", function, null);
        assertRefused("not a GPU", function, Device.cpu());
        assertRefused("single GPU", function, new Device.MultiDevice("gpu", 0, 2));
        assertRefused("gpu(999)", function, Device.gpu(999));
    }

    @ParameterizedTest
    @MethodSource("functions")
    void gpusAreRefusedWhereThereAreNone(Consumer<Device> function) {
        if (NativeLibrary.CUDA.isAvailable()) {
            function.accept(Device.gpu(0));
        } else {
            assertRefused("CUDA driver", function, Device.gpu(0));
        }
    }

    private static void assertRefused(String reason, Consumer<Device> function, Device device) {
        var e = assertThrows(IllegalArgumentException.class, () -> function.accept(device));
        assertTrue(e.getMessage().contains(reason), e.getMessage());
    }
}
