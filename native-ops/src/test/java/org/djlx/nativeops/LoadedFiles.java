// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import java.util.List;

/**
 * Prints from which files a process has loaded CUDA's libraries, after libtorch and the presets.
 */
final class LoadedFiles {

    private LoadedFiles() {}

    public static void main(String[] args) {
        NativeLibrary.LIBTORCH.ensureAvailability();
        NativeLibrary.CUBLASLT.ensureAvailability();
        NativeLibrary.NVRTC.ensureAvailability();
        for (String name :
                List.of("libcudart.so", "libcublas.so", "libcublasLt.so", "libnvrtc.so")) {
            System.out.println(name + ": " + LoadedLibraries.versionsOf(name));
        }
    }
}
