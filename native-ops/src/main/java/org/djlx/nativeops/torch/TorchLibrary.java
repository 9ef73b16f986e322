/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
import org.djlx.nativeops.host.Scratch;

/**
 * Defines operators of libtorch in Java. TorchScript models that are loaded afterwards, by DJL too,
 * call them as {@code torch.ops.space.name(...)}, on tensors of any device.
 *
 * <pre>{@code
 * TorchLibrary.define(
 *         "demo::scale(Tensor x, float factor=2.0) -> Tensor",
 *         arguments -> arguments.tensor(0).mul(arguments.floating(1)));
 * NDList output = TorchLibrary.call(() -> predictor.predict(input));
 * }</pre>
 *
 * <p>A kernel runs on the thread that runs the model, but in what the model forks ({@code
 * torch.jit.fork}) on one of libtorch's. Where gradients are on, the operators of DJL that a kernel
 * calls are differentiated like any others; so a kernel that does something else must refuse inputs
 * for which {@link NoGradient#isRecorded} holds. libtorch takes operators to be free of side
 * effects: it may leave out a call whose result is not used, and make one of two that are equal.
 *
 * <p>What a kernel throws ends the model's call: DJL's is an {@link ai.djl.engine.EngineException},
 * whose message holds the kernel's. {@link #call} throws what the kernel has thrown.
 */
public final class TorchLibrary {

    // What libtorch calls must not be collected, and is never taken back.
    private static final List<Object> DEFINED = new ArrayList<>();

    private static final ThreadLocal<Run> RUN = new ThreadLocal<>();
    private static final ThreadLocal<Memory> MESSAGE = new ThreadLocal<>(); // the last failure's

    private TorchLibrary() {}

    /** What an operator does. */
    @FunctionalInterface
    public interface Kernel {

        /**
         * Computes the result.
         *
         * @param arguments the arguments; closed after the call
         * @return the result, which may be an argument; it may belong to the arguments' manager or
         *     another, as the model gets a reference of its own. Must be libtorch's memory, not
         *     Java's
         */
        NDArray call(TorchArguments arguments);
    }

    /** A call of models, and the last failure of a kernel in it. */
    private static final class Run {
        Throwable failure;
    }

    /**
     * Defines an operator, for as long as the process lives.
     *
     * @param schema libtorch's text of it, such as {@code space::name(Tensor x, *, int n=0) ->
     *     Tensor}: arguments of type Tensor, int, float and bool, with or without defaults, and one
     *     tensor as the result
     * @param kernel what it does; called by several threads at once
     * @throws IllegalArgumentException if the schema has other types or another form
     * @throws ai.djl.engine.EngineException if libtorch refuses it, as when there is an operator of
     *     this name
     * @throws UnsupportedOperationException on processors other than x86-64, and if the operating
     *     system does not let the process make code executable
     */
    public static void define(String schema, Kernel kernel) {
        TorchSchema parsed = TorchSchema.parse(schema);
        if (kernel == null) {
            throw new IllegalArgumentException("the kernel is null");
        }
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
        boolean done = false;
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
            done = true;
        } finally {
            if (!done) {
                AotiTorch.check(AotiTorch.aoti_torch_delete_library_object(library), operation);
            }
        }
    }

    private static Memory cString(String text) {
        Memory memory = new Memory(text.length() + 1L);
        memory.setString(0, text, "US-ASCII");
        return memory;
    }

    /** What {@link TorchKernelCode} calls. */
    private interface BoxedKernel extends Callback {

        /**
         * Replaces the arguments on the stack, each of 64 bits, by the result.
         *
         * @return null, or a message, with which the stack is as it was
         */
        Pointer call(Pointer stack, long arguments, long results);
    }

    /**
     * Runs a kernel. The handles of tensors on the stack are its to delete, the result's is
     * libtorch's. Nothing may be thrown into native code.
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
            MESSAGE.set(message); // libtorch copies it before this thread calls here again.
            return message;
        }
    }

    private static long handle(NDArray result) {
        long tensor = TorchChecks.tensor(result, "the kernel's result");
        if (result instanceof MemoryView || BufferOfArray.get((PtNDArray) result) != null) {
            throw new IllegalArgumentException(
                    "the kernel's result does not lie in memory of libtorch");
        }
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTorch.aoti_torch_new_tensor_handle(tensor, scratch.slot(0)), "TorchLibrary");
        return scratch.getLong(0);
    }

    /**
     * Runs code that runs models. If it throws since a kernel has thrown, on this thread, throws
     * what the kernel has; what the code has thrown is suppressed in that. May be nested.
     *
     * @param code the code
     * @param <T> the type of what it returns
     * @return what it returns
     * @throws Exception if the code throws
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
