// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import org.djlx.collectives.GpuTests;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;

/** As {@link FusedUpdatesTest}, by the kernels of a GPU. */
@Tag("gpu")
@Tag("beside")
@Timeout(100)
class FusedUpdatesGpuTest extends FusedUpdatesTest {

    @BeforeEach
    void requireGpu() {
        GpuTests.require(1, NativeLibrary.NVRTC);
    }

    @Override
    Device device() {
        return Device.gpu(0);
    }
}
