// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import java.util.List;

/** Loads libtorch, cuBLASLt and NVRTC, then prints the files of CUDA's libraries. */
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
