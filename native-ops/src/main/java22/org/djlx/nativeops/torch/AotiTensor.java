// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.invoke.MethodHandle;

/**
 * Binds the functions of libtorch's stable C ABI that every operation calls, through {@code
 * java.lang.foreign}. The class of the same name in {@code src/main/java} is for Java 17 to 21.
 */
final class AotiTensor {

    private static final Downcalls LIBRARY = new Downcalls(AotiTorch.LIBRARY);
    private static final MethodHandle GET_DATA_PTR = getter("data_ptr");
    private static final MethodHandle GET_DIM = getter("dim");
    private static final MethodHandle GET_SIZES = getter("sizes");
    private static final MethodHandle GET_STRIDES = getter("strides");
    private static final MethodHandle GET_DTYPE = getter("dtype");
    private static final MethodHandle GET_DEVICE_TYPE = getter("device_type");
    private static final MethodHandle GET_DEVICE_INDEX = getter("device_index");
    private static final MethodHandle NEW_TENSOR_HANDLE =
            LIBRARY.handle("aoti_torch_new_tensor_handle", JAVA_LONG, JAVA_LONG);
    private static final MethodHandle DELETE_TENSOR_OBJECT =
            LIBRARY.handle("aoti_torch_delete_tensor_object", JAVA_LONG);
    private static final MethodHandle CALL_DISPATCHER =
            LIBRARY.handle("aoti_torch_call_dispatcher", JAVA_LONG, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle REQUIRES_GRAD =
            LIBRARY.handle("_ZNK3c1010TensorImpl13requires_gradEv", JAVA_LONG);

    private AotiTensor() {}

    private static MethodHandle getter(String property) {
        return LIBRARY.handle("aoti_torch_get_" + property, JAVA_LONG, JAVA_LONG);
    }

    static boolean isForeign() {
        return true;
    }

    static int aoti_torch_get_data_ptr(long tensor, long resultAddress) {
        return Downcalls.call(GET_DATA_PTR, tensor, resultAddress);
    }

    static int aoti_torch_get_dim(long tensor, long resultAddress) {
        return Downcalls.call(GET_DIM, tensor, resultAddress);
    }

    static int aoti_torch_get_sizes(long tensor, long resultAddress) {
        return Downcalls.call(GET_SIZES, tensor, resultAddress);
    }

    static int aoti_torch_get_strides(long tensor, long resultAddress) {
        return Downcalls.call(GET_STRIDES, tensor, resultAddress);
    }

    static int aoti_torch_get_dtype(long tensor, long resultAddress) {
        return Downcalls.call(GET_DTYPE, tensor, resultAddress);
    }

    static int aoti_torch_get_device_type(long tensor, long resultAddress) {
        return Downcalls.call(GET_DEVICE_TYPE, tensor, resultAddress);
    }

    static int aoti_torch_get_device_index(long tensor, long resultAddress) {
        return Downcalls.call(GET_DEVICE_INDEX, tensor, resultAddress);
    }

    static int aoti_torch_new_tensor_handle(long tensor, long resultAddress) {
        return Downcalls.call(NEW_TENSOR_HANDLE, tensor, resultAddress);
    }

    static int aoti_torch_delete_tensor_object(long tensor) {
        return Downcalls.call(DELETE_TENSOR_OBJECT, tensor);
    }

    static int _ZNK3c1010TensorImpl13requires_gradEv(long tensorImpl) {
        return Downcalls.call(REQUIRES_GRAD, tensorImpl);
    }

    static int aoti_torch_call_dispatcher(long operator, long overload, long stack) {
        return Downcalls.call(CALL_DISPATCHER, operator, overload, stack);
    }
}
