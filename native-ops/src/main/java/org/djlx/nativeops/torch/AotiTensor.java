// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import com.sun.jna.Native;

/**
 * Binds {@code src/main/cpp/tensors.cpp}: the functions of libtorch's stable C ABI that every
 * operation calls, with the conventions of {@link AotiTorch}. This is the class for Java 17 to 21,
 * with JNA's direct mapping. Java 22 and newer load the class of the same name from {@code
 * META-INF/versions/22}, which calls through {@code java.lang.foreign} in less time. Both have the
 * same methods.
 */
final class AotiTensor {

    static {
        Native.register(AotiTensor.class, AotiTorch.OWN);
    }

    private AotiTensor() {}

    /** Returns whether calls go through {@code java.lang.foreign}. */
    static boolean isForeign() {
        return false;
    }

    /** Reads tensors; returns the number of words, or -1. */
    static native int djlx_read_tensors(long count, long handles, long words);

    static native int djlx_empty(long arguments, long results);

    /** {@code aoti_torch_new_tensor_handle}. */
    static native int djlx_new_handle(long tensor, long resultAddress);

    /** {@code aoti_torch_delete_tensor_object}. */
    static native int djlx_delete_handle(long tensor);

    /** {@code aoti_torch_get_current_cuda_stream}, by its address: it is not in libtorch_cpu.so. */
    static native int djlx_current_stream(long function, long deviceIndex, long resultAddress);

    /** {@code aoti_torch_call_dispatcher}. */
    static native int djlx_call_dispatcher(long operator, long overload, long stack);
}
