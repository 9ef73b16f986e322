// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.Assumptions;

/** Utilities for tests on GPUs. */
public final class GpuTests {

    private GpuTests() {}

    /** Skips the tests of a class, with the cause, where they cannot run. */
    public static void require(int gpus, NativeLibrary... libraries) {
        require(NativeLibrary.CUDA);
        require(NativeLibrary.CUDA_PRESETS);
        for (NativeLibrary library : libraries) {
            require(library);
        }
        Assumptions.assumeTrue(
                CudaDevice.count() >= gpus,
                () -> "needs " + gpus + " GPUs, has " + CudaDevice.count());
    }

    private static void require(NativeLibrary library) {
        Assumptions.assumeTrue(
                library.isAvailable(), () -> library + ": " + library.unavailabilityCause());
    }
}
