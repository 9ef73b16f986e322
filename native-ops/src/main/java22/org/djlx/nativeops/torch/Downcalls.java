// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static java.lang.foreign.ValueLayout.JAVA_INT;

import com.sun.jna.NativeLibrary;
import com.sun.jna.Pointer;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * Calls C functions that return an {@code int32_t} through {@code java.lang.foreign}. Keep handles
 * in static final fields: only then does the JIT compiler call the function directly.
 *
 * <p>Calls are not {@linkplain Linker.Option#critical critical}. A critical call saves about 1 ns,
 * but the garbage collector must wait until it returns, and it may not call Java.
 */
record Downcalls(NativeLibrary library) {

    /** Returns the handle of a function; throws if the library does not have it. */
    @SuppressWarnings("restricted") // Libraries are loaded by JNA, which needs the same permission.
    MethodHandle handle(String function, MemoryLayout... arguments) {
        long address = Pointer.nativeValue(library.getFunction(function));
        return Linker.nativeLinker()
                .downcallHandle(
                        MemorySegment.ofAddress(address),
                        FunctionDescriptor.of(JAVA_INT, arguments));
    }

    static int call(MethodHandle function, long a) {
        try {
            return (int) function.invokeExact(a);
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    static int call(MethodHandle function, long a, long b) {
        try {
            return (int) function.invokeExact(a, b);
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    static int call(MethodHandle function, long a, long b, long c) {
        try {
            return (int) function.invokeExact(a, b, c);
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    /** Returns what to throw if a call throws; a C function throws nothing that Java sees. */
    private static RuntimeException unexpected(Throwable e) {
        if (e instanceof Error error) {
            throw error; // For example a StackOverflowError.
        }
        return new IllegalStateException("a native call threw an exception", e);
    }
}
