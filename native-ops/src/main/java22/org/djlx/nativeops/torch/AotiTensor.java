// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.invoke.MethodHandle;

/**
 * Binds {@code src/main/cpp/tensors.cpp} through {@code java.lang.foreign}. The class of the same
 * name in {@code src/main/java} is for Java 17 to 21.
 */
final class AotiTensor {

    private static final Downcalls LIBRARY = new Downcalls(AotiTorch.OWN);
    private static final MethodHandle READ_TENSORS =
            LIBRARY.handle("djlx_read_tensors", JAVA_LONG, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle EMPTY = LIBRARY.handle("djlx_empty", JAVA_LONG, JAVA_LONG);
    private static final MethodHandle NEW_HANDLE =
            LIBRARY.handle("djlx_new_handle", JAVA_LONG, JAVA_LONG);
    private static final MethodHandle DELETE_HANDLE =
            LIBRARY.handle("djlx_delete_handle", JAVA_LONG);
    private static final MethodHandle CURRENT_STREAM =
            LIBRARY.handle("djlx_current_stream", JAVA_LONG, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle CALL_DISPATCHER =
            LIBRARY.handle("djlx_call_dispatcher", JAVA_LONG, JAVA_LONG, JAVA_LONG);

    private AotiTensor() {}

    static boolean isForeign() {
        return true;
    }

    static int djlx_read_tensors(long count, long handles, long words) {
        return Downcalls.call(READ_TENSORS, count, handles, words);
    }

    static int djlx_empty(long arguments, long results) {
        return Downcalls.call(EMPTY, arguments, results);
    }

    static int djlx_new_handle(long tensor, long resultAddress) {
        return Downcalls.call(NEW_HANDLE, tensor, resultAddress);
    }

    static int djlx_delete_handle(long tensor) {
        return Downcalls.call(DELETE_HANDLE, tensor);
    }

    static int djlx_current_stream(long function, long deviceIndex, long resultAddress) {
        return Downcalls.call(CURRENT_STREAM, function, deviceIndex, resultAddress);
    }

    static int djlx_call_dispatcher(long operator, long overload, long stack) {
        return Downcalls.call(CALL_DISPATCHER, operator, overload, stack);
    }
}
