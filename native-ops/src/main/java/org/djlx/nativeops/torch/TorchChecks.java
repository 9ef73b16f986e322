// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;
import ai.djl.pytorch.jni.JniUtils;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.NativeCalls;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Required;

/**
 * Checks arguments, because a wrong argument would crash the process in native code. Every failure
 * is an {@link IllegalArgumentException} that names the argument.
 */
public final class TorchChecks {

    /** The handle of a {@link PtNDArray} that is an array of strings. */
    private static final long STRINGS = -1;

    private static final int STRIDED = 0;

    private TorchChecks() {}

    static PtNDArray array(NDArray array, String name) {
        Required.argument(name, array);
        if (!(array instanceof PtNDArray)) {
            throw new IllegalArgumentException(
                    name + " is not an array of the PyTorch engine but " + array.getClass());
        }
        NativeLibrary.LIBTORCH.ensureAvailability();
        PtNDArray result = (PtNDArray) array;
        if (handle(result, name) == STRINGS) {
            throw new IllegalArgumentException(name + " is an array of strings");
        }
        NativeCalls.countOther();
        int layout = JniUtils.getLayout(result);
        if (layout != STRIDED) {
            throw new IllegalArgumentException(
                    name
                            + " must be strided, not sparse or of another layout: DJL's number "
                            + layout);
        }
        return result;
    }

    static long tensor(NDArray array, String name) {
        return handle(array(array, name), name);
    }

    static long handle(PtNDArray array, String name) {
        try {
            return array.getHandle();
        } catch (IllegalStateException e) {
            throw new IllegalArgumentException(name + " is closed", e);
        }
    }

    static PtNDManager manager(NDManager manager) {
        Required.argument("the manager", manager);
        if (!(manager instanceof PtNDManager)) {
            throw new IllegalArgumentException(
                    "the manager is not one of the PyTorch engine but " + manager.getClass());
        }
        NativeLibrary.LIBTORCH.ensureAvailability();
        if (!manager.isOpen()) {
            throw new IllegalArgumentException("the manager is closed");
        }
        return (PtNDManager) manager;
    }

    static void type(ScalarType type) {
        Required.argument("the element type", type);
    }

    /** As {@link NativeMemory#deviceType}, and checks that libtorch can use the device. */
    static int usableDeviceType(Device device) {
        int type = NativeMemory.deviceType(device);
        if (device.isGpu()) {
            TorchCuda.requireDevice(device);
        }
        return type;
    }

    /** Checks that a device is a GPU that libtorch can use. */
    public static void usableGpu(Device device) {
        NativeMemory.deviceType(device);
        if (!device.isGpu()) {
            throw new IllegalArgumentException("the device is not a GPU: " + device);
        }
        NativeLibrary.LIBTORCH.ensureAvailability();
        TorchCuda.requireDevice(device);
    }
}
