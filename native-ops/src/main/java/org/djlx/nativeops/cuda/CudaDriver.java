// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.util.function.IntSupplier;
import org.bytedeco.cuda.cudart.CUctx_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.PointerPointer;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CallingThread;

/**
 * Calls the driver through JavaCPP's presets. Loaded only after {@link NativeLibrary#CUDA_PRESETS}
 * was found available. The package's other classes load without the presets, and can report that
 * the presets are missing. So they never convert a presets class to its superclass: the JVM's
 * verifier would load both classes.
 */
public final class CudaDriver {

    private CudaDriver() {}

    static void check(int result, String function) {
        if (result != cudart.CUDA_SUCCESS) {
            throw new CudaException(function, errorName(result), result, errorDescription(result));
        }
    }

    /**
     * Calls the driver with a context current, and restores the thread's context. Inside {@link
     * CurrentStreams#hold} the context is not switched.
     */
    static int in(CUctx_st context, IntSupplier call) {
        CallingThread.get().driverCalls++;
        return inContext(context, call);
    }

    /** As {@link #in}, for a call of another library. */
    static int inContext(CUctx_st context, IntSupplier call) {
        CallingThread thread = CallingThread.get();
        boolean pushed = enter(thread, context);
        try {
            return call.getAsInt();
        } finally {
            leave(thread, pushed);
        }
    }

    /**
     * Makes a context current for one call, and returns whether the context was switched; {@link
     * #leave} must follow. Does the same as {@link #inContext} without a lambda, for calls on hot
     * paths: until C2 has compiled it, a capturing lambda costs more than the driver's call.
     */
    static boolean enter(CallingThread thread, CUctx_st context) {
        if (thread.context == context.address() || isCurrent(thread, context)) {
            return false;
        }
        push(thread, context);
        return true;
    }

    static void leave(CallingThread thread, boolean pushed) {
        if (pushed) {
            pop(thread);
        }
    }

    private static boolean isCurrent(CallingThread thread, CUctx_st context) {
        thread.driverCalls++;
        if (thread.current == null) {
            thread.current = new CUctx_st();
        }
        CUctx_st current = (CUctx_st) thread.current;
        check(cudart.cuCtxGetCurrent(current), "cuCtxGetCurrent");
        return current.address() == context.address();
    }

    private static void push(CallingThread thread, CUctx_st context) {
        thread.driverCalls++;
        check(cudart.cuCtxPushCurrent(context), "cuCtxPushCurrent");
    }

    private static void pop(CallingThread thread) {
        thread.driverCalls++;
        check(cudart.cuCtxPopCurrent((CUctx_st) null), "cuCtxPopCurrent");
    }

    /** Returns a pointer to an address that JavaCPP neither owns nor frees. */
    static Pointer pointer(long address) {
        return new Address(address);
    }

    /** Returns a pointer to an array of pointers that JavaCPP neither owns nor frees. */
    static PointerPointer<Pointer> pointers(long address) {
        return new PointerPointer<>(pointer(address));
    }

    /** Returns a copy of bytes in native memory; the caller closes it. */
    static Pointer copy(byte[] bytes) {
        return new BytePointer(bytes);
    }

    private static String errorName(int result) {
        try (PointerPointer<BytePointer> text = new PointerPointer<>(1)) {
            boolean known = cudart.cuGetErrorName(result, text) == cudart.CUDA_SUCCESS;
            return known ? text.get(BytePointer.class).getString() : "an unknown error";
        }
    }

    private static String errorDescription(int result) {
        try (PointerPointer<BytePointer> text = new PointerPointer<>(1)) {
            boolean known = cudart.cuGetErrorString(result, text) == cudart.CUDA_SUCCESS;
            return known ? text.get(BytePointer.class).getString() : "no description";
        }
    }

    /** A mutable address that JavaCPP neither owns nor frees. */
    static final class Address extends Pointer {
        Address(long address) {
            this.address = address;
        }

        Address to(long other) {
            this.address = other;
            return this;
        }
    }
}
