// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import ai.djl.Device;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;

/** The GPUs of this process. Checks for GPUs and libraries before a command starts. */
public final class Gpus {

    private Gpus() {}

    /**
     * Checks that this process can use so many GPUs and the libraries; throws
     * IllegalStateException.
     */
    public static void require(int count, NativeLibrary... libraries) {
        requireAvailable(NativeLibrary.CUDA_PRESETS);
        for (NativeLibrary library : libraries) {
            requireAvailable(library);
        }
        if (CudaDevice.count() < count) {
            throw new IllegalStateException(
                    String.format(
                            "each rank needs a GPU: there are %d for %s on this host",
                            CudaDevice.count(), Ranks.count(count)));
        }
    }

    /** Returns the number of GPUs of this process; 0 without a GPU or a driver. */
    public static int count() {
        return NativeLibrary.CUDA.isAvailable() ? CudaDevice.count() : 0;
    }

    /** Returns the product names of the GPUs of this process, by GPU; empty without GPUs. */
    public static List<String> names() {
        if (!NativeLibrary.CUDA_PRESETS.isAvailable()) {
            return List.of();
        }
        return IntStream.range(0, CudaDevice.count()).mapToObj(Gpus::name).toList();
    }

    private static String name(int gpu) {
        try (CudaDevice device = CudaDevice.open(Device.gpu(gpu))) {
            return device.name();
        }
    }

    private static void requireAvailable(NativeLibrary library) {
        Throwable cause = library.unavailabilityCause();
        if (cause != null) {
            throw new IllegalStateException("no GPU can be used: " + cause.getMessage(), cause);
        }
    }
}
