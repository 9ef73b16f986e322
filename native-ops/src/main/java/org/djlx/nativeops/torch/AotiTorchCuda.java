// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import org.djlx.nativeops.LoadedLibraries;

/**
 * Binds the CUDA part of libtorch's stable C ABI, in libtorch_cuda.so. Conventions are those of
 * {@link AotiTorch}; streams are {@code cudaStream_t}.
 */
final class AotiTorchCuda {

    static final long CURRENT_STREAM;

    static {
        com.sun.jna.NativeLibrary library =
                com.sun.jna.NativeLibrary.getInstance(LoadedLibraries.find("libtorch_cuda.so"));
        Native.register(AotiTorchCuda.class, library);
        CURRENT_STREAM =
                Pointer.nativeValue(library.getFunction("aoti_torch_get_current_cuda_stream"));
    }

    private AotiTorchCuda() {}

    /** Initialises this class; fails if a function is missing. */
    static void load() {}

    static native int aoti_torch_cuda_mm_out(long out, long a, long b);

    static native int aoti_torch_create_cuda_stream_guard(
            long stream, int deviceIndex, long resultAddress);

    static native int aoti_torch_delete_cuda_stream_guard(long guard);
}
