// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import com.sun.jna.Native;
import org.djlx.nativeops.LoadedLibraries;

/**
 * Binds the CUDA part of libtorch's stable C ABI, in libtorch_cuda.so. Conventions are those of
 * {@link AotiTorch}; streams are {@code cudaStream_t}. This is the class for Java 17 to 21: see
 * {@link AotiTensor}.
 */
final class AotiTorchCuda {

    static {
        Native.register(
                AotiTorchCuda.class,
                com.sun.jna.NativeLibrary.getInstance(LoadedLibraries.find("libtorch_cuda.so")));
    }

    private AotiTorchCuda() {}

    /** Initialises this class; fails if a function is missing. */
    static void load() {}

    static native int aoti_torch_cuda_mm_out(long out, long a, long b);

    static native int aoti_torch_get_current_cuda_stream(int deviceIndex, long resultAddress);

    static native int aoti_torch_create_cuda_stream_guard(
            long stream, int deviceIndex, long resultAddress);

    static native int aoti_torch_delete_cuda_stream_guard(long guard);
}
