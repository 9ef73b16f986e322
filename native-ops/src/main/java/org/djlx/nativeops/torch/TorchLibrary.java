// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.engine.PtNDArray;
import com.sun.jna.Callback;
import com.sun.jna.CallbackReference;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.host.Scratch;

/**
 * Defines libtorch operators in Java. TorchScript models loaded afterwards, also by DJL, call them
 * as {@code torch.ops.space.name(...)}, on tensors of any device.
 *
 * <pre>{@code
 * TorchLibrary.define(
 *         "demo::scale(Tensor x, float factor=2.0) -> Tensor",
 *         arguments -> arguments.tensor(0).mul(arguments.floating(1)));
 * NDList output = TorchLibrary.call(() -> predictor.predict(input));
 * }</pre>
 *
 * <p>Rules for kernels:
 *
 * <ul>
 *   <li><b>Threads.</b> A kernel runs on the thread that runs the model; in code that the model
 *       forks ({@code torch.jit.fork}), on one of libtorch's threads.
 *   <li><b>Gradients.</b> With gradients on, DJL's operators in a kernel are differentiated as
 *       usual. A kernel that does anything else must refuse inputs for which {@link
 *       NoGradient#isRecorded} holds.
 *   <li><b>Side effects.</b> libtorch assumes that kernels have no side effects: it may drop a call
 *       whose result is not used, and merge equal calls.
 *   <li><b>Errors.</b> An exception ends the model's call with an {@link
 *       ai.djl.engine.EngineException} that has its message. {@link #call} throws the original
 *       exception.
 * </ul>
 */
public final class TorchLibrary {

    // Keeps callbacks from garbage collection, because libtorch may call them at any time.
    private static final List<Object> DEFINED = new ArrayList<>();

    private static final ThreadLocal<Run> RUN = new ThreadLocal<>();
    private static final ThreadLocal<Memory> MESSAGE = new ThreadLocal<>(); // of the last failure

    private TorchLibrary() {}

    @FunctionalInterface
    public interface Kernel {

        /**
         * Computes the result.
         *
         * @param arguments the arguments; closed after the call
         * @return the result, which may be an argument, in any manager: the model gets a new
         *     reference. Must be in libtorch's memory, not Java's
         */
        NDArray call(TorchArguments arguments);
    }

    /** The state of a {@link #call}: the last failure of a kernel. */
    private static final class Run {
        Throwable failure;
    }

    /**
     * Defines an operator. It exists until the process ends.
     *
     * @param schema libtorch's schema, such as {@code space::name(Tensor x, *, int n=0) -> Tensor}:
     *     arguments of type Tensor, int, float and bool, with or without defaults, and one tensor
     *     as result
     * @param kernel the implementation; must be thread-safe
     * @throws IllegalArgumentException if the schema has other types or another form
     * @throws ai.djl.engine.EngineException if libtorch refuses it, for example because the
     *     operator exists
     * @throws UnsupportedOperationException on processors other than x86-64, and if the operating
     *     system does not allow executable memory
     */
    public static void define(String schema, Kernel kernel) {
        TorchSchema parsed = TorchSchema.parse(schema);
        Required.argument("the kernel", kernel);
        NativeLibrary.LIBTORCH.ensureAvailability();
        BoxedKernel boxed = (stack, count, results) -> run(parsed, kernel, stack);
        Memory namespace = cString(parsed.namespace());
        Memory name = cString(parsed.name());
        Memory text = cString(schema.substring(schema.indexOf("::") + 2));
        Memory file = cString(TorchLibrary.class.getName());
        Scratch scratch = Scratch.get();
        String operation = "TorchLibrary.define(" + schema + ")";
        AotiTorch.check(
                AotiTorch.aoti_torch_library_init_fragment(
                        Pointer.nativeValue(namespace),
                        Pointer.nativeValue(file),
                        0,
                        scratch.slot(0)),
                operation);
        long library = scratch.getLong(0);
        try {
            AotiTorch.check(
                    AotiTorch.aoti_torch_library_def(library, Pointer.nativeValue(text)),
                    operation);
            Pointer function = CallbackReference.getFunctionPointer(boxed);
            long code =
                    TorchKernelCode.create(
                            Pointer.nativeValue(function), Pointer.nativeValue(name));
            AotiTorch.check(
                    AotiTorch.aoti_torch_library_impl(library, Pointer.nativeValue(name), code),
                    operation);
            synchronized (DEFINED) {
                DEFINED.addAll(List.of(boxed, namespace, name, text, file));
            }
        } catch (Throwable e) {
            AotiTorch.check(AotiTorch.aoti_torch_delete_library_object(library), operation);
            throw e;
        }
    }

    private static Memory cString(String text) {
        Memory memory = new Memory(text.length() + 1L);
        memory.setString(0, text, "US-ASCII");
        return memory;
    }

    /** The callback of {@link TorchKernelCode}. */
    private interface BoxedKernel extends Callback {

        /**
         * Replaces the arguments on the stack, 64 bits each, by the result. Returns null on
         * success; otherwise a message, and the stack is not changed.
         */
        Pointer call(Pointer stack, long arguments, long results);
    }

    /**
     * Runs a kernel. Owns the handles of tensors on the stack; libtorch owns the result's handle.
     * Must not throw into native code.
     */
    private static Pointer run(TorchSchema schema, Kernel kernel, Pointer stack) {
        try {
            long[] values = stack.getLongArray(0, schema.arguments().size());
            try (TorchArguments arguments = new TorchArguments(schema, values)) {
                stack.setLong(0, handle(kernel.call(arguments)));
            }
            return null;
        } catch (Throwable t) {
            Run run = RUN.get();
            if (run != null) {
                run.failure = t;
            }
            byte[] text = String.valueOf(t).getBytes(StandardCharsets.UTF_8);
            Memory message = new Memory(text.length + 1L);
            message.write(0, text, 0, text.length);
            message.setByte(text.length, (byte) 0);
            MESSAGE.set(
                    message); // Valid until the next failure on this thread; libtorch copies it.
            return message;
        }
    }

    private static long handle(NDArray result) {
        long tensor = TorchChecks.tensor(result, "the kernel's result");
        if (result instanceof MemoryView || BufferOfArray.get((PtNDArray) result) != null) {
            throw new IllegalArgumentException(
                    "the kernel's result must be in libtorch's memory; return a copy");
        }
        Scratch scratch = Scratch.get();
        AotiTorch.check(AotiTensor.djlx_new_handle(tensor, scratch.slot(0)), "TorchLibrary");
        return scratch.getLong(0);
    }

    /**
     * Runs code that runs models. If it throws because a kernel has thrown on this thread, throws
     * the kernel's exception, with the code's exception as a suppressed exception. Calls may be
     * nested.
     */
    public static <T> T call(Callable<T> code) throws Exception {
        Run outer = RUN.get();
        Run run = new Run();
        RUN.set(run);
        try {
            return code.call();
        } catch (Exception | Error e) {
            Throwable failure = run.failure;
            if (failure == null) {
                throw e;
            }
            if (failure != e) {
                failure.addSuppressed(e);
            }
            if (failure instanceof Error error) {
                throw error;
            }
            throw (Exception) failure;
        } finally {
            if (outer == null) {
                RUN.remove();
            } else {
                RUN.set(outer);
            }
        }
    }
}
