/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

import ai.djl.engine.EngineException;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import org.djlx.nativeops.LoadedLibraries;
import org.djlx.nativeops.NativeCalls;

/**
 * Binds libtorch's stable C interface ({@code torch/csrc/inductor/aoti_torch/c/shim.h}), as
 * exported by the libtorch_cpu.so that DJL loaded. A handle is an {@code at::Tensor*}, which is
 * what DJL's arrays hold. All arguments are primitive, pointers are {@code long}: that is what
 * makes JNA's direct mapping fast (60 ns a call).
 *
 * <p>A function that returns a status returns 0 or, after printing the error to the standard error
 * stream, 1. Handles passed in are borrowed, those returned are new and the caller's to delete,
 * except with {@link #aoti_torch_call_dispatcher}: see {@link TorchDispatcher}.
 */
public final class AotiTorch {

    private static final com.sun.jna.NativeLibrary LIBRARY =
            com.sun.jna.NativeLibrary.getInstance(LoadedLibraries.find("libtorch_cpu.so"));

    static {
        Native.register(AotiTorch.class, LIBRARY);
    }

    private AotiTorch() {}

    /**
     * Returns the address of {@code void aoti_torch_check(bool cond, const char* func, const char*
     * file, uint32_t line, const char* msg)}, which throws a C++ exception if the condition does
     * not hold, and so cannot be called from Java.
     */
    static long addressOfCheck() {
        return Pointer.nativeValue(LIBRARY.getFunction("aoti_torch_check"));
    }

    /** Throws if a function reported an error; the interface hands out a status, no message. */
    public static void check(int status, String operation) {
        NativeCalls.countOther();
        if (status != 0) {
            throw new EngineException(
                    operation
                            + " failed in libtorch, which wrote why to the standard error stream");
        }
    }

    static native int aoti_torch_get_data_ptr(long tensor, long resultAddress);

    static native int aoti_torch_get_dim(long tensor, long resultAddress);

    static native int aoti_torch_get_sizes(long tensor, long resultAddress);

    static native int aoti_torch_get_strides(long tensor, long resultAddress);

    static native int aoti_torch_get_size(long tensor, long dimension, long resultAddress);

    static native int aoti_torch_get_stride(long tensor, long dimension, long resultAddress);

    static native int aoti_torch_get_dtype(long tensor, long resultAddress);

    static native int aoti_torch_get_device_type(long tensor, long resultAddress);

    static native int aoti_torch_get_device_index(long tensor, long resultAddress);

    static native int aoti_torch_create_tensor_from_blob(
            long data,
            long dimensions,
            long sizes,
            long strides,
            long storageOffset,
            int dtype,
            int deviceType,
            int deviceIndex,
            long resultAddress);

    static native int aoti_torch_empty_strided(
            long dimensions,
            long sizes,
            long strides,
            int dtype,
            int deviceType,
            int deviceIndex,
            long resultAddress);

    static native int aoti_torch_copy_(long self, long source, int nonBlocking);

    static native int aoti_torch_cpu_mm_out(long out, long a, long b);

    static native int aoti_torch_scalar_to_tensor_float64(double value, long resultAddress);

    static native int aoti_torch_new_tensor_handle(long tensor, long resultAddress);

    static native int aoti_torch_new_uninitialized_tensor(long resultAddress);

    static native int aoti_torch_delete_tensor_object(long tensor);

    static native int aoti_torch_call_dispatcher(long operator, long overload, long stack);

    static native int aoti_torch_library_init_fragment(
            long namespace, long file, int line, long resultAddress);

    static native int aoti_torch_library_def(long library, long schema);

    static native int aoti_torch_library_impl(long library, long name, long kernel);

    static native int aoti_torch_delete_library_object(long library);
}
