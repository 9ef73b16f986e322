// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import org.djlx.nativeops.CudaProbe;
import org.djlx.nativeops.NativeLibrary;

/** Whether the libtorch that DJL loaded can use GPUs. Probed once. */
final class TorchCuda {

    private static final Throwable UNAVAILABILITY_CAUSE = probe();

    private TorchCuda() {}

    private static Throwable probe() {
        Throwable noDriver = NativeLibrary.CUDA.unavailabilityCause();
        if (noDriver != null) {
            return noDriver;
        }
        try {
            AotiTorchCuda.load();
            return null;
        } catch (LinkageError e) {
            return e.getCause() == null ? e : e.getCause();
        }
    }

    /** Checks that libtorch, which must be loaded, can use a GPU. */
    static void requireDevice(Device device) {
        if (UNAVAILABILITY_CAUSE != null) {
            throw new IllegalArgumentException(
                    device + " cannot be used by libtorch: " + UNAVAILABILITY_CAUSE.getMessage(),
                    UNAVAILABILITY_CAUSE);
        }
        int count = CudaProbe.deviceCount();
        if (device.getDeviceId() >= count) {
            throw new IllegalArgumentException(
                    device + " does not exist: CUDA shows " + count + " GPUs to this process");
        }
    }
}
