// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import com.sun.jna.ptr.IntByReference;
import com.sun.jna.ptr.PointerByReference;

/** Probes the CUDA driver: whether it works, and how many GPUs it shows. */
public final class CudaProbe {

    private static volatile int deviceCount;

    private CudaProbe() {}

    /**
     * {@return how many GPUs this process can use; 0 unless {@link NativeLibrary#CUDA} has been
     * found available}
     */
    public static int deviceCount() {
        return deviceCount;
    }

    static void run() {
        com.sun.jna.NativeLibrary driver =
                LibraryProbes.open(
                        "the CUDA driver",
                        "install NVIDIA's driver or, in a container, start it with access to GPUs",
                        "libcuda.so.1");
        require(driver, "cuInit", driver.getFunction("cuInit").invokeInt(new Object[] {0}));
        IntByReference count = new IntByReference();
        require(
                driver,
                "cuDeviceGetCount",
                driver.getFunction("cuDeviceGetCount").invokeInt(new Object[] {count}));
        if (count.getValue() == 0) {
            throw new UnsatisfiedLinkError(
                    "the CUDA driver shows no GPU to this process; check CUDA_VISIBLE_DEVICES");
        }
        deviceCount = count.getValue();
    }

    private static void require(com.sun.jna.NativeLibrary driver, String function, int result) {
        if (result != 0) {
            throw new UnsatisfiedLinkError(
                    ("%s of the CUDA driver %s failed with %s; check with nvidia-smi that the"
                                    + " driver works")
                            .formatted(function, driver.getFile(), errorName(driver, result)));
        }
    }

    private static String errorName(com.sun.jna.NativeLibrary driver, int result) {
        PointerByReference name = new PointerByReference();
        int status = driver.getFunction("cuGetErrorName").invokeInt(new Object[] {result, name});
        return status == 0 ? name.getValue().getString(0) : "error " + result;
    }
}
