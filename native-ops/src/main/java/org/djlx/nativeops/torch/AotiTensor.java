// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import com.sun.jna.Native;

/**
 * Binds the functions of libtorch's stable C ABI that every operation calls, with the conventions
 * of {@link AotiTorch}. This is the class for Java 17 to 21, with JNA's direct mapping. Java 22 and
 * newer load the class of the same name from {@code META-INF/versions/22}, which calls through
 * {@code java.lang.foreign} in less time. Both have the same methods.
 */
final class AotiTensor {

    static {
        Native.register(AotiTensor.class, AotiTorch.LIBRARY);
    }

    private AotiTensor() {}

    /** Returns whether calls go through {@code java.lang.foreign}. */
    static boolean isForeign() {
        return false;
    }

    static native int aoti_torch_get_data_ptr(long tensor, long resultAddress);

    static native int aoti_torch_get_dim(long tensor, long resultAddress);

    static native int aoti_torch_get_sizes(long tensor, long resultAddress);

    static native int aoti_torch_get_strides(long tensor, long resultAddress);

    static native int aoti_torch_get_dtype(long tensor, long resultAddress);

    static native int aoti_torch_get_device_type(long tensor, long resultAddress);

    static native int aoti_torch_get_device_index(long tensor, long resultAddress);

    static native int aoti_torch_new_tensor_handle(long tensor, long resultAddress);

    static native int aoti_torch_delete_tensor_object(long tensor);

    /** {@code bool c10::TensorImpl::requires_grad() const}, of libc10.so. */
    static native int _ZNK3c1010TensorImpl13requires_gradEv(long tensorImpl);

    static native int aoti_torch_call_dispatcher(long operator, long overload, long stack);
}
