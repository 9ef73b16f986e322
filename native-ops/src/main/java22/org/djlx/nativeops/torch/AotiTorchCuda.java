// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.invoke.MethodHandle;
import org.djlx.nativeops.LoadedLibraries;

/**
 * Binds the CUDA part of libtorch's stable C ABI, through {@code java.lang.foreign}. The class of
 * the same name in {@code src/main/java} is for Java 17 to 21.
 */
final class AotiTorchCuda {

    private static final Downcalls LIBRARY =
            new Downcalls(
                    com.sun.jna.NativeLibrary.getInstance(
                            LoadedLibraries.find("libtorch_cuda.so")));
    private static final MethodHandle MM_OUT =
            LIBRARY.handle("aoti_torch_cuda_mm_out", JAVA_LONG, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle GET_CURRENT_STREAM =
            LIBRARY.handle("aoti_torch_get_current_cuda_stream", JAVA_INT, JAVA_LONG);
    private static final MethodHandle CREATE_STREAM_GUARD =
            LIBRARY.handle("aoti_torch_create_cuda_stream_guard", JAVA_LONG, JAVA_INT, JAVA_LONG);
    private static final MethodHandle DELETE_STREAM_GUARD =
            LIBRARY.handle("aoti_torch_delete_cuda_stream_guard", JAVA_LONG);

    private AotiTorchCuda() {}

    /** Initialises this class; fails if a function is missing. */
    static void load() {}

    static int aoti_torch_cuda_mm_out(long out, long a, long b) {
        return Downcalls.call(MM_OUT, out, a, b);
    }

    static int aoti_torch_get_current_cuda_stream(int deviceIndex, long resultAddress) {
        try {
            return (int) GET_CURRENT_STREAM.invokeExact(deviceIndex, resultAddress);
        } catch (Throwable e) {
            throw Downcalls.unexpected(e);
        }
    }

    static int aoti_torch_create_cuda_stream_guard(
            long stream, int deviceIndex, long resultAddress) {
        try {
            return (int) CREATE_STREAM_GUARD.invokeExact(stream, deviceIndex, resultAddress);
        } catch (Throwable e) {
            throw Downcalls.unexpected(e);
        }
    }

    static int aoti_torch_delete_cuda_stream_guard(long guard) {
        return Downcalls.call(DELETE_STREAM_GUARD, guard);
    }
}
