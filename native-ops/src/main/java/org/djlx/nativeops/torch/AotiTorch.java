// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.engine.EngineException;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import org.djlx.nativeops.LoadedLibraries;
import org.djlx.nativeops.host.NativeCalls;
import org.djlx.nativeops.host.Scratch;

/**
 * Binds libtorch's stable C ABI ({@code torch/csrc/inductor/aoti_torch/c/shim.h}), as exported by
 * the libtorch_cpu.so that DJL loaded. A handle is an {@code at::Tensor*}, the same as in DJL's
 * arrays. All arguments are primitive and pointers are {@code long}, which makes JNA's direct
 * mapping fast (60 ns per call).
 *
 * <p>Functions return status 0, or 1 after printing the error to the standard error stream. Handles
 * passed in are borrowed. Returned handles are new; the caller deletes them. The exception is
 * {@link AotiTensor#djlx_call_dispatcher}: see {@link TorchDispatcher}.
 */
public final class AotiTorch {

    static final com.sun.jna.NativeLibrary LIBRARY =
            com.sun.jna.NativeLibrary.getInstance(LoadedLibraries.find("libtorch_cpu.so"));

    // In the order of struct Functions.
    private static final String[] FUNCTIONS = {
        "aoti_torch_get_dtype",
        "aoti_torch_get_data_ptr",
        "aoti_torch_get_dim",
        "aoti_torch_get_sizes",
        "aoti_torch_get_strides",
        "aoti_torch_get_device_type",
        "aoti_torch_get_device_index",
        "_ZNK3c1010TensorImpl13requires_gradEv", // in libc10.so; the ABI has no such function
        "aoti_torch_empty_strided",
        "aoti_torch_new_tensor_handle",
        "aoti_torch_delete_tensor_object",
        "aoti_torch_call_dispatcher"
    };

    /** The library of {@code src/main/cpp}, which calls libtorch. */
    static final com.sun.jna.NativeLibrary OWN = LoadedLibraries.own();

    static {
        Native.register(AotiTorch.class, LIBRARY);
        long[] functions = new long[FUNCTIONS.length];
        for (int i = 0; i < functions.length; i++) {
            functions[i] = Pointer.nativeValue(LIBRARY.getFunction(FUNCTIONS[i]));
        }
        OWN.getFunction("djlx_bind").invokeVoid(new Object[] {functions});
    }

    private AotiTorch() {}

    /**
     * Returns the address of {@code void aoti_torch_check(bool cond, const char* func, const char*
     * file, uint32_t line, const char* msg)}. The function throws a C++ exception if the condition
     * is false, so Java cannot call it.
     */
    static long addressOfCheck() {
        return Pointer.nativeValue(LIBRARY.getFunction("aoti_torch_check"));
    }

    /**
     * Checks the status of a function. The message does not contain the cause, because the ABI
     * returns none.
     */
    public static void check(int status, String operation) {
        NativeCalls.countOther();
        if (status != 0) {
            throw new EngineException(
                    operation
                            + " failed in libtorch, which wrote the reason to the standard error"
                            + " stream");
        }
    }

    /**
     * {@return the calling thread's current stream, a {@code cudaStream_t}, of a GPU that {@link
     * TorchChecks#usableGpu} has accepted; 0 is the default stream}
     */
    public static long currentCudaStream(int deviceIndex) {
        Scratch scratch = Scratch.get();
        check(
                AotiTensor.djlx_current_stream(
                        AotiTorchCuda.CURRENT_STREAM, deviceIndex, scratch.slot(0)),
                "Torch.currentCudaStream");
        return scratch.getLong(0);
    }

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

    static native int aoti_torch_copy_(long self, long source, int nonBlocking);

    static native int aoti_torch_cpu_mm_out(long out, long a, long b);

    static native int aoti_torch_scalar_to_tensor_float64(double value, long resultAddress);

    static native int aoti_torch_new_uninitialized_tensor(long resultAddress);

    static native int aoti_torch_library_init_fragment(
            long namespace, long file, int line, long resultAddress);

    static native int aoti_torch_library_def(long library, long schema);

    static native int aoti_torch_library_impl(long library, long name, long kernel);

    static native int aoti_torch_delete_library_object(long library);
}
