// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import org.bytedeco.cuda.global.cublas;
import org.bytedeco.javacpp.Loader;

/** Loads JavaCPP's presets for cuBLASLt. */
final class CublasLtProbe {

    private CublasLtProbe() {}

    static void run() {
        Throwable noPresets = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        if (noPresets != null) {
            throw LoadedLibraries.linkError(noPresets.getMessage(), noPresets);
        }
        try {
            Presets.load();
        } catch (LinkageError e) {
            throw LoadedLibraries.linkError(
                    "JavaCPP's presets for cuBLAS do not load ("
                            + e.getMessage()
                            + "); put libcublas and libcublasLt of the presets' CUDA major version"
                            + " into a folder of LD_LIBRARY_PATH; libtorch ships them",
                    e);
        }
    }

    /** A separate class: the JVM then loads the presets only when they are needed. */
    private static final class Presets {

        static void load() {
            CudaPresetsProbe.locked(() -> Loader.load(cublas.class));
        }
    }
}
