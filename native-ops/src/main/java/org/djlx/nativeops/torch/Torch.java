// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;
import ai.djl.pytorch.jni.JniUtils;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.BinaryOperator;
import java.util.function.LongUnaryOperator;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CallingThread;
import org.djlx.nativeops.host.CopyQueue;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.host.Scratch;

/**
 * Properties and operators of DJL's PyTorch arrays that DJL does not offer, through libtorch's
 * stable C ABI: addresses, strides, all element types, views of memory, and operators. The rules
 * below also apply to the in-place operators of {@link TorchInPlace}.
 *
 * <p><b>Errors.</b> A wrong argument throws an {@link IllegalArgumentException} that names the
 * argument. Wrong arguments are null, closed, of another engine, sparse, arrays of strings, or of
 * the wrong type, shape or device. A failure inside libtorch throws an {@link EngineException}; if
 * its message lacks the reason, libtorch has written the reason to the standard error stream.
 * Without libtorch, methods throw as {@link NativeLibrary#ensureAvailability()} does.
 *
 * <p><b>Threads.</b> Thread-safe, except that an array must not be read while it is written, and an
 * array, its manager or its memory must not be closed while another thread uses it. On a GPU,
 * operators are queued on the calling thread's current stream and return immediately. An array may
 * be closed before this stream has executed its operators; for other streams use {@code
 * CudaStream.keepAlive}.
 *
 * <p><b>Gradients.</b> If the calling thread's gradient mode is on, autograd records {@link #copy},
 * {@link #cast}, {@link #attention}, {@link #silu} and the in-place operators, like PyTorch's own
 * operators. Gradient mode is on by default on each thread; {@link NoGradient} switches it off.
 * While it is on, writing to an array that requires a gradient throws an {@link EngineException},
 * and results computed from such an array keep the graph alive. {@link #mmOut} and writes through a
 * view are never recorded.
 */
public final class Torch {

    private Torch() {}

    /**
     * {@return the address of an array's first element, on the array's device; 0 if the array has
     * no elements} It is valid until the array and all arrays that share its storage are closed.
     */
    public static long dataPointer(NDArray array) {
        return Tensors.address(TorchChecks.tensor(array, "the array"));
    }

    /** {@return the size of every dimension, in elements; empty for a scalar} */
    public static long[] sizes(NDArray array) {
        return Tensors.sizes(TorchChecks.tensor(array, "the array"));
    }

    /**
     * {@return the element type, including types that {@link NDArray#getDataType()} does not have}
     *
     * @throws IllegalArgumentException also if the array is quantized
     */
    public static ScalarType scalarType(NDArray array) {
        return Tensors.scalarType(TorchChecks.tensor(array, "the array"));
    }

    /**
     * {@return an array's element type, sizes, strides and address, read by one call}
     *
     * @throws IllegalArgumentException also if the array is quantized
     */
    public static TensorInfo info(NDArray array) {
        return Tensors.infos(TorchChecks.tensor(array, "the array"))[0];
    }

    /**
     * {@return the infos of arrays} One native call reads 16 arrays.
     *
     * @throws IllegalArgumentException also if an array is quantized
     */
    public static TensorInfo[] infos(List<NDArray> arrays) {
        long[] handles = new long[arrays.size()];
        for (int i = 0; i < handles.length; i++) {
            handles[i] = TorchChecks.tensor(arrays.get(i), "the array");
        }
        return Tensors.infos(handles);
    }

    public static Device device(NDArray array) {
        return Tensors.device(TorchChecks.tensor(array, "the array"));
    }

    /**
     * {@return whether an array's elements are contiguous in row-major order; true for an array
     * without elements that is not complex} They can then be copied as one block from {@link
     * #dataPointer}. Complex arrays count as not contiguous: libtorch conjugates lazily, so memory
     * may hold the conjugates.
     */
    public static boolean isContiguous(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        return Tensors.infos(tensor)[0].isContiguous();
    }

    /**
     * {@return a contiguous array over a range of memory, without a copy, on the memory's device}
     *
     * <p>The array holds a reference to the memory until it is closed, by itself or by its manager.
     * Arrays that DJL derives from it without a copy (slices, transposes, reshapes) share the
     * memory but hold no reference: close them before the array. If the array is {@linkplain
     * NDArray#intern interned} into another, the memory is never freed.
     *
     * @param manager the manager of the array; its device does not matter
     * @param offset the offset of the first element in bytes; {@code memory.address() + offset}
     *     must be a multiple of the element size
     * @param shape the shape, with all sizes known; sizes may be 0
     * @throws IllegalArgumentException also if the memory is closed or too small, or the offset is
     *     negative or not aligned
     */
    public static NDArray view(
            NDManager manager, NativeMemory memory, long offset, Shape shape, ScalarType type) {
        long[] sizes = sizes(shape);
        return view(manager, memory, offset, sizes, Extents.contiguousStrides(sizes), type);
    }

    /**
     * {@return an array with given strides over memory, without a copy, on the memory's device}
     * Otherwise as {@link #view(NDManager, NativeMemory, long, Shape, ScalarType)}.
     *
     * @param offset the offset of the first element in bytes
     * @param sizes the size of every dimension, at most 64 of them
     * @param strides the stride of every dimension, in elements, not negative; elements may overlap
     */
    public static NDArray view(
            NDManager manager,
            NativeMemory memory,
            long offset,
            long[] sizes,
            long[] strides,
            ScalarType type) {
        PtNDManager owner = TorchChecks.manager(manager);
        TorchChecks.type(type);
        Extents.requireSizes(sizes);
        Extents.requireStrides(sizes, strides);
        long address = viewAddress(memory, offset, sizes, strides, type);
        Device device = memory.device();
        int deviceType = TorchChecks.usableDeviceType(device);
        try {
            memory.retain();
        } catch (IllegalStateException e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        }
        try {
            Scratch scratch = Scratch.get();
            AotiTorch.check(
                    AotiTorch.aoti_torch_create_tensor_from_blob(
                            address,
                            sizes.length,
                            scratch.put(Scratch.SLOTS, sizes),
                            scratch.put(Scratch.SLOTS + Scratch.MAX_DIMENSIONS, strides),
                            0,
                            type.code(),
                            deviceType,
                            device.getDeviceId(),
                            scratch.slot(0)),
                    "Torch.view");
            return adopt(owner, scratch.getLong(0), memory, null);
        } catch (Throwable e) {
            memory.release();
            throw e;
        }
    }

    private static long viewAddress(
            NativeMemory memory, long offset, long[] sizes, long[] strides, ScalarType type) {
        Required.argument("the memory", memory);
        long span = Extents.byteSpan(sizes, strides, type.itemSize());
        if (offset < 0 || offset > memory.byteSize() || span > memory.byteSize() - offset) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s of shape %s with strides %s at offset %d needs %d bytes, which is"
                                    + " more than the rest of %s",
                            type,
                            Arrays.toString(sizes),
                            Arrays.toString(strides),
                            offset,
                            span,
                            memory));
        }
        long address = memory.address() + offset;
        if (Long.remainderUnsigned(address, type.itemSize()) != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "offset %d into %s is not aligned to the %d bytes of a %s",
                            offset, memory, type.itemSize(), type));
        }
        return address;
    }

    static long[] sizes(Shape shape) {
        Required.argument("the shape", shape);
        long[] sizes = shape.getShape();
        Extents.requireSizes(sizes);
        return sizes;
    }

    /**
     * {@return whether an array requires a gradient, as {@code torch.Tensor.requires_grad}: it is a
     * leaf that requires one, or was computed from such a leaf with the gradient mode on} {@link
     * NDArray#hasGradient()} is true for leaves only.
     */
    public static boolean requiresGradient(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        return Tensors.requiresGradient(tensor);
    }

    /**
     * Replaces the gradient of an array that requires one, as setting {@code torch.Tensor.grad}. If
     * the gradient is null, the next backward pass stores its gradient instead of adding it to
     * zeros.
     *
     * <p>Restrictions:
     *
     * <ul>
     *   <li>No backward pass that reaches the array may be running.
     *   <li>The gradient shares its storage with the array's gradient from now on, so libtorch must
     *       own the storage. A view of {@link NativeMemory} is refused. A slice of an array that
     *       DJL created from Java data is not allowed either, but cannot be detected.
     *   <li>Without a gradient, DJL's {@link NDArray#getGradient()} returns new float32 zeros.
     * </ul>
     *
     * @param gradient the gradient, of the array's shape, type and device; null for none
     * @throws IllegalArgumentException if the array does not require a gradient and one is given,
     *     or the gradient has another shape, type or device, requires a gradient itself, or is not
     *     in libtorch's memory
     * @throws EngineException if this version of libtorch has an unexpected layout of gradients
     */
    public static void setGradient(NDArray array, NDArray gradient) {
        long leaf = TorchChecks.tensor(array, "the array");
        if (gradient != null && !array.hasGradient()) {
            throw new IllegalArgumentException(
                    "setGradient: the array does not require a gradient");
        }
        long tensor = 0;
        if (gradient != null) {
            tensor = TorchChecks.tensor(gradient, "the gradient");
            if (!array.getShape().equals(gradient.getShape())
                    || scalarType(array) != scalarType(gradient)
                    || !device(array).equals(device(gradient))
                    || requiresGradient(gradient)
                    || gradient instanceof MemoryView
                    || BufferOfArray.get((PtNDArray) gradient) != null) {
                throw new IllegalArgumentException(
                        String.format(
                                "setGradient: an array of %s, %s on %s cannot have a gradient of"
                                    + " %s, %s on %s; the gradient must have the same shape, type"
                                    + " and device, not require a gradient, and be in libtorch's"
                                    + " memory",
                                array.getShape(),
                                scalarType(array),
                                device(array),
                                gradient.getShape(),
                                scalarType(gradient),
                                device(gradient)));
            }
        }
        GradientSlot.set(leaf, tensor);
    }

    /**
     * {@return the number of open arrays that {@link NDArray#getGradient()} has returned for an
     * array's gradient; 0 if the array has no gradient}
     *
     * @throws EngineException if this version of libtorch has an unexpected layout of gradients
     */
    public static int gradientHolders(NDArray array) {
        return GradientSlot.holders(TorchChecks.tensor(array, "the array"));
    }

    /**
     * {@return the version counter: how often libtorch's operators have written to an array in
     * place, directly or through views} Kernels and copies that use its address are not counted.
     *
     * @throws EngineException if the array has no counter, as in libtorch's inference mode
     */
    public static long version(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        return TorchDispatcher.call(TorchDispatcher.Operator.VERSION, "Torch.version", tensor);
    }

    /**
     * {@return a second array on the storage of an array, of the same device, shape, strides and
     * element type} The storage lives until both are closed, so an asynchronous operation can keep
     * an array that its owner may close.
     *
     * <p>This does not extend the life of the array that an array was derived from: slices,
     * transposes and reshapes, and aliases of them, are valid only as long as their original.
     */
    public static NDArray alias(NDManager manager, NDArray array) {
        return onStorage(
                manager,
                array,
                tensor -> {
                    Scratch scratch = Scratch.get();
                    AotiTorch.check(
                            AotiTensor.djlx_new_handle(tensor, scratch.slot(0)), "Torch.alias");
                    return scratch.getLong(0);
                });
    }

    /**
     * {@return a second array on the storage of an array, as PyTorch's {@code data}: without its
     * graph, and with a {@linkplain #version version} of its own} A write to one of the two does
     * not change the version of the other. So if autograd has saved one, the backward pass reads
     * what is there then, and does not throw: the caller restores the content before. Otherwise as
     * {@link #alias}.
     */
    public static NDArray data(NDManager manager, NDArray array) {
        return onStorage(
                manager,
                array,
                tensor -> {
                    try (NDManager own = array.getManager().newSubManager(array.getDevice());
                            NDArray none = empty(own, new Shape(0), scalarType(array))) {
                        long target = TorchChecks.tensor(none, "the new array");
                        return NoGradient.get(
                                () ->
                                        TorchDispatcher.call(
                                                TorchDispatcher.Operator.SET_SOURCE,
                                                "Torch.data",
                                                target,
                                                tensor));
                    }
                });
    }

    /** Returns an array with a new handle, which keeps the memory of its original. */
    private static NDArray onStorage(
            NDManager manager, NDArray array, LongUnaryOperator newHandle) {
        PtNDManager owner = TorchChecks.manager(manager);
        PtNDArray original = TorchChecks.array(array, "the array");
        long tensor = TorchChecks.tensor(array, "the array");
        NativeMemory memory = original instanceof MemoryView view ? view.retainMemory() : null;
        boolean adopted = false;
        try {
            long handle = newHandle.applyAsLong(tensor);
            NDArray second = adopt(owner, handle, memory, BufferOfArray.get(original));
            adopted = true;
            return second;
        } finally {
            if (!adopted && memory != null) {
                memory.release();
            }
        }
    }

    /**
     * Returns a range of an array along a dimension, as PyTorch's {@code narrow}: without a copy,
     * and without parsing an index. Recorded by autograd.
     *
     * @param array the array; closing it invalidates the result
     * @param dimension the dimension, from 0
     * @param start the start of the range, in elements along the dimension
     * @return the range, with the array's number of dimensions, in the array's manager
     */
    public static NDArray narrow(NDArray array, int dimension, long start, long length) {
        PtNDArray whole = TorchChecks.array(array, "the array");
        long[] sizes = sizes(array);
        boolean inside =
                dimension >= 0
                        && dimension < sizes.length
                        && start >= 0
                        && length >= 0
                        && length <= sizes[dimension] - start;
        if (!inside) {
            throw new IllegalArgumentException(
                    String.format(
                            "narrow: %d elements from %d on are outside of dimension %d of an array"
                                    + " of shape %s",
                            length, start, dimension, Arrays.toString(sizes)));
        }
        return JniUtils.slice(whole, dimension, start, start + length, 1);
    }

    /**
     * Changes an array, and all arrays of the same tensor, to shape (0). This frees the storage
     * even if other code keeps a reference to the tensor. Arrays of other tensors on the storage,
     * such as views, keep the storage alive.
     */
    public static void makeEmpty(NDArray array) {
        TorchDispatcher.inPlace(
                TorchDispatcher.Operator.SET_,
                "Torch.makeEmpty",
                TorchChecks.tensor(array, "the array"));
    }

    /**
     * {@return a new contiguous array with uninitialised elements}
     *
     * @param manager the manager of the array, on whose device it is allocated
     * @param shape the shape, with all sizes known; sizes may be 0
     * @throws EngineException also if memory runs out
     */
    public static NDArray empty(NDManager manager, Shape shape, ScalarType type) {
        Device device = TorchChecks.manager(manager).getDevice();
        return new TensorTemplate(device, shape, type).create(manager).array();
    }

    /** {@return a new contiguous array of zeros} Parameters and errors as {@link #empty}. */
    public static NDArray zeros(NDManager manager, Shape shape, ScalarType type) {
        return zeroed(empty(manager, shape, type));
    }

    /**
     * {@return a new contiguous array of zeros of the shape and type of an array, in its manager
     * and on its device} DJL's {@link NDArray#zerosLike} ends the JVM for types that DJL's engine
     * cannot name, such as bfloat16.
     */
    public static NDArray zerosLike(NDArray array) {
        return zeroed(emptyLike(array, scalarType(array)));
    }

    private static NDArray zeroed(NDArray array) {
        try {
            TorchInPlace.zero(array);
            return array;
        } catch (Throwable e) {
            array.close();
            throw e;
        }
    }

    private static NDArray emptyLike(NDArray array, ScalarType type) {
        Shape shape = new Shape(sizes(array));
        return new TensorTemplate(device(array), shape, type).create(array.getManager()).array();
    }

    /**
     * Creates an array that owns a new tensor; deletes the tensor on failure. The memory owns the
     * elements; null if libtorch or a buffer, as {@link BufferOfArray#get}, does.
     */
    static NDArray adopt(PtNDManager owner, long tensor, NativeMemory memory, ByteBuffer buffer) {
        try {
            return memory == null
                    ? new PtNDArray(owner, tensor, buffer)
                    : new MemoryView(owner, tensor, memory);
        } catch (IllegalStateException e) {
            AotiTorch.check(AotiTensor.djlx_delete_handle(tensor), "Torch.adopt");
            throw new IllegalArgumentException(
                    "the manager cannot own the array: " + e.getMessage(), e);
        }
    }

    /**
     * Copies all elements of an array to another of the same shape, as PyTorch's {@code copy_}.
     * Elements of other types are converted: to a narrower floating-point type they are rounded to
     * nearest even, to an integer they are truncated.
     *
     * <ul>
     *   <li>A copy on one GPU is queued on its current stream. A copy between a GPU and the CPU
     *       blocks.
     *   <li>A copy between two GPUs within an operation of a process group is queued on the rank's
     *       current stream. Both arrays must be contiguous and of one element type.
     *   <li>Elsewhere, a copy between two GPUs runs on the current stream of the source's GPU,
     *       after the work of the destination's current stream, which then waits for the copy.
     *       Ranks that are threads of one process have these streams in common if they use the
     *       default streams: such a copy waits for the work of other ranks.
     * </ul>
     *
     * @param dst the destination, with any strides; must not partly overlap {@code src}
     * @throws IllegalArgumentException if the shapes differ, or an array is not as above
     * @throws IllegalStateException between two GPUs within an operation, if a {@link
     *     CudaStreamGuard} has switched the stream
     */
    public static void copy(NDArray dst, NDArray src) {
        long to = TorchChecks.tensor(dst, "the destination");
        long from = TorchChecks.tensor(src, "the source");
        if (Tensors.checkCopy(to, from) && CallingThread.get().context != 0) {
            copyBetweenGpus(Tensors.infos(to, from));
        } else {
            AotiTorch.check(AotiTorch.aoti_torch_copy_(to, from, 0), "Torch.copy");
        }
    }

    private static void copyBetweenGpus(TensorInfo... arrays) {
        TensorInfo to = arrays[0];
        TensorInfo from = arrays[1];
        if (to.type() != from.type() || !to.isContiguous() || !from.isContiguous()) {
            throw new IllegalArgumentException(
                    String.format(
                            "cannot copy %s with strides %s to %s with strides %s on another GPU:"
                                + " within an operation both must be contiguous and of one element"
                                + " type; convert the array on its own GPU first",
                            from.type(),
                            Arrays.toString(from.strides()),
                            to.type(),
                            Arrays.toString(to.strides())));
        }
        if (!(CallingThread.get().stream instanceof CopyQueue queue)) {
            throw new IllegalStateException(
                    "cannot copy between GPUs within an operation while a CudaStreamGuard is open:"
                            + " close it, or use CudaStream.copyAsync");
        }
        queue.copyAsync(to.address(), from.address(), to.byteSize());
    }

    /**
     * {@return a contiguous copy of an array with another element type, or its own, including types
     * that {@link NDArray#toType} does not have, in the array's manager and on its device} Elements
     * are converted as by {@link #copy}.
     */
    public static NDArray cast(NDArray array, ScalarType type) {
        long from = TorchChecks.tensor(array, "the array");
        Tensors.scalarType(from);
        NDArray result = emptyLike(array, type);
        try {
            AotiTorch.check(
                    AotiTorch.aoti_torch_copy_(TorchChecks.tensor(result, "the result"), from, 0),
                    "Torch.cast");
            return result;
        } catch (Throwable e) {
            result.close();
            throw e;
        }
    }

    /**
     * Multiplies two matrices: {@code out = a b}. The arrays may have any strides, but if neither
     * rows nor columns of {@code out} are contiguous, libtorch uses a temporary matrix. On CPUs a
     * 16-bit row or column whose elements are not adjacent is copied. Never recorded by autograd.
     *
     * @param out the product, of shape (m, n); must not overlap {@code a} or {@code b}
     * @param a a matrix of shape (m, k)
     * @param b a matrix of shape (k, n); with k = 0 the product is zeros
     * @throws IllegalArgumentException also unless all three are on one device and of the same
     *     type: float16, bfloat16, float32 or float64
     */
    public static void mmOut(NDArray out, NDArray a, NDArray b) {
        long result = TorchChecks.tensor(out, "out");
        long left = TorchChecks.tensor(a, "a");
        long right = TorchChecks.tensor(b, "b");
        Tensors.requireMatrices(Tensors.sizes(result), Tensors.sizes(left), Tensors.sizes(right));
        ScalarType type = Tensors.scalarType(result);
        if (type != Tensors.scalarType(left) || type != Tensors.scalarType(right)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the element types differ: out is %s, a is %s, b is %s",
                            type, Tensors.scalarType(left), Tensors.scalarType(right)));
        }
        if (!type.isFloatingPoint() || type.isFloat8()) {
            throw new IllegalArgumentException("mmOut does not support the element type " + type);
        }
        Tensors.requireSameDevice("out", result, "a", left);
        Tensors.requireSameDevice("out", result, "b", right);
        if (Tensors.device(result).isGpu()) {
            AotiTorch.check(
                    AotiTorchCuda.aoti_torch_cuda_mm_out(result, left, right), "Torch.mmOut");
        } else if (isSpreadVector(out)) {
            try (NDArray product = empty(out.getManager(), out.getShape(), type)) {
                mmOut(product, a, b);
                NoGradient.run(() -> copy(out, product));
            }
        } else {
            multiply(
                    a,
                    b,
                    (x, y) -> {
                        AotiTorch.check(
                                AotiTorch.aoti_torch_cpu_mm_out(
                                        result,
                                        TorchChecks.tensor(x, "a"),
                                        TorchChecks.tensor(y, "b")),
                                "Torch.mmOut");
                        return out;
                    });
        }
    }

    /**
     * Multiplies as {@link NDArray#matMul}, with its errors, recorded by autograd. On CPUs a 16-bit
     * row or column whose elements are not adjacent is copied, because libtorch 2.7.1 multiplies it
     * wrongly.
     *
     * @param a of shape (…, k)
     * @param b a matrix of shape (k, n)
     * @return the product, of shape (…, n), in the manager of {@code a}
     */
    public static NDArray matMul(NDArray a, NDArray b) {
        return multiply(a, b, NDArray::matMul);
    }

    private static NDArray multiply(NDArray a, NDArray b, BinaryOperator<NDArray> product) {
        if (isSpreadVector(a)) {
            try (NDArray adjacent = cast(a, scalarType(a))) {
                return multiply(adjacent, b, product);
            }
        }
        if (isSpreadVector(b)) {
            try (NDArray adjacent = cast(b, scalarType(b))) {
                return multiply(a, adjacent, product);
            }
        }
        return product.apply(a, b);
    }

    /**
     * Returns whether an array on a CPU is one row or column of 16-bit elements that are not
     * adjacent; all dimensions but the last count as rows. libtorch 2.7.1 takes them for adjacent
     * when it multiplies by oneDNN.
     */
    private static boolean isSpreadVector(NDArray array) {
        TensorInfo info = info(array);
        if (info.type().itemSize() != Short.BYTES || info.isContiguous()) {
            return false;
        }
        long columns = info.sizes()[info.sizes().length - 1];
        return (columns == 1 || info.count() == columns) && !device(array).isGpu();
    }

    /**
     * Computes attention, {@code softmax(query keyᵀ / sqrt(size)) value} for each head (Vaswani et
     * al., 2017, <a href="https://arxiv.org/abs/1706.03762">arXiv:1706.03762</a>), as PyTorch's
     * {@code scaled_dot_product_attention}. Recorded by autograd.
     *
     * <p>On CPUs, and for 16-bit types on GPUs, libtorch has kernels that never hold the scores of
     * all pairs in memory (Dao et al., 2022, <a
     * href="https://arxiv.org/abs/2205.14135">arXiv:2205.14135</a>). If libtorch chooses cuDNN's
     * kernel, each new shape takes 45 ms once, so pad sequences to few different lengths.
     *
     * @param query of shape (batch, query heads, queries, size), of a floating-point type
     * @param key of shape (batch, key heads, keys, size). If there are n times as many query heads
     *     as key heads, n adjacent query heads share a key head (grouped-query attention)
     * @param causal whether query {@code i} attends only to the keys up to {@code i}
     * @return the result, of the query's shape and type and in its manager
     * @throws IllegalArgumentException also unless all three are of one type and on one device
     */
    public static NDArray attention(NDArray query, NDArray key, NDArray value, boolean causal) {
        return attention(query, key, value, Optional.empty(), causal);
    }

    /**
     * Computes {@link #attention} that is not causal, with a mask that is added to the scores
     * before the softmax: for example -infinity where a query must not attend to a key. Each query
     * needs a key that it may attend to.
     *
     * @param mask of the query's type, of a shape that broadcasts to (batch, heads, queries, keys).
     *     On GPUs, libtorch copies the mask unless the number of keys is a multiple of 8
     */
    public static NDArray attention(NDArray query, NDArray key, NDArray value, NDArray mask) {
        TorchChecks.array(mask, "the mask");
        return attention(query, key, value, Optional.of(mask), false);
    }

    private static NDArray attention(
            NDArray query, NDArray key, NDArray value, Optional<NDArray> mask, boolean causal) {
        PtNDArray array = TorchChecks.array(query, "the query");
        long queries = TorchChecks.tensor(query, "the query");
        long keys = TorchChecks.tensor(key, "the key");
        long values = TorchChecks.tensor(value, "the value");
        Tensors.requireAttention(queries, keys, values);
        if (mask.isPresent()) {
            Tensors.requireMask(queries, keys, TorchChecks.tensor(mask.get(), "the mask"));
        }
        long heads = Tensors.sizes(queries)[1];
        boolean grouped = heads != Tensors.sizes(keys)[1];
        if (grouped && !sharesHeads(queries)) {
            try (NDArray ownKeys = repeated(key, heads);
                    NDArray ownValues = repeated(value, heads)) {
                return attention(query, ownKeys, ownValues, mask, causal);
            }
        }
        long result =
                TorchDispatcher.attention(
                        "Torch.attention", queries, keys, values, mask, causal, grouped);
        return adopt(array.getManager(), result, null, null);
    }

    /**
     * Computes causal attention of each sequence's last positions to the whole sequence, as
     * PyTorch's {@code causal_lower_right}: the last query attends to all keys of its sequence, and
     * each earlier query to one key less than the next. Uses FlashAttention 2 (Dao, 2023, <a
     * href="https://arxiv.org/abs/2307.08691">arXiv:2307.08691</a>), which never holds the scores
     * of all pairs in memory; for several sequences its variable-length form. Has no gradient.
     *
     * <p>Requirements of all three arrays: a GPU of compute capability 8.0 or later, float16 or
     * bfloat16, and rows that are contiguous and begin at multiples of 16 bytes.
     *
     * @param query of shape (1, query heads, queries of all sequences, size); the size is a
     *     multiple of 8 up to 256
     * @param key of shape (1, key heads, keys of all sequences, size). If there are n times as many
     *     query heads as key heads, n adjacent query heads share a key head
     * @param value of the key's shape
     * @param packed how many of the queries and keys belong to each sequence; on the same device
     * @param window the number of keys that a query attends to, its own included (a sliding
     *     window); 0 for all
     * @return the result, of the query's shape and type and in its manager
     * @throws IllegalArgumentException also unless all three are of one type and on one device, if
     *     the numbers of queries and keys are not those of {@code packed}, or {@code packed} is
     *     null, and if an array requires a gradient
     */
    public static NDArray attentionOfLast(
            NDArray query, NDArray key, NDArray value, PackedSequences packed, int window) {
        return flashAttention("attentionOfLast", query, key, value, packed, window - 1, 0);
    }

    /**
     * Computes attention between the positions of each sequence, in both directions. Uses the
     * kernel of {@link #attentionOfLast}, whose requirements hold here, too.
     *
     * @param query of shape (1, query heads, positions of all sequences, size)
     * @param packed the number of positions of each sequence, as queries and as keys
     * @param reach a position attends to at most this many positions before it, to as many after
     *     it, and to itself; -1 for all positions
     */
    public static NDArray attentionWithin(
            NDArray query, NDArray key, NDArray value, PackedSequences packed, int reach) {
        return flashAttention("attentionWithin", query, key, value, packed, reach, reach);
    }

    private static NDArray flashAttention(
            String name,
            NDArray query,
            NDArray key,
            NDArray value,
            PackedSequences packed,
            int before,
            int after) {
        PtNDArray array = TorchChecks.array(query, "the query");
        long queries = TorchChecks.tensor(query, "the query");
        long keys = TorchChecks.tensor(key, "the key");
        long values = TorchChecks.tensor(value, "the value");
        Tensors.requireAttention(queries, keys, values);
        for (NDArray each : new NDArray[] {query, key, value}) {
            if (NoGradient.isRecorded(each)) {
                throw new IllegalArgumentException(
                        name
                                + " has no gradient, but the array of shape "
                                + each.getShape()
                                + " requires one; use Torch.attention, or NoGradient");
            }
        }
        if (packed == null) {
            throw new IllegalArgumentException("the lengths of the packed sequences are null");
        }
        Tensors.requirePacked(name, Tensors.sizes(queries), Tensors.sizes(keys), packed);
        if (!sharesHeads(queries)) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s supports float16 and bfloat16 on a GPU, not %s on %s",
                            name, Tensors.scalarType(queries), query.getDevice()));
        }
        Tensors.requireAligned("the query", queries);
        Tensors.requireAligned("the key", keys);
        Tensors.requireAligned("the value", values);
        boolean several = packed.count() > 1;
        try (NDArray q = rows(query, several);
                NDArray k = rows(key, several);
                NDArray v = rows(value, several)) {
            long result =
                    TorchDispatcher.flashAttention(
                            "Torch." + name,
                            TorchChecks.tensor(q, "the query"),
                            TorchChecks.tensor(k, "the key"),
                            TorchChecks.tensor(v, "the value"),
                            packed,
                            before,
                            after);
            try (NDArray output = adopt(array.getManager(), result, null, null)) {
                return several
                        ? output.transpose(1, 0, 2).expandDims(0)
                        : output.transpose(0, 2, 1, 3);
            }
        }
    }

    /**
     * Views (1, heads, rows, size) as FlashAttention's (1, rows, heads, size), or (rows, heads,
     * size) in its variable-length form.
     */
    private static NDArray rows(NDArray x, boolean several) {
        NDArray rows = x.transpose(0, 2, 1, 3);
        if (!several) {
            return rows;
        }
        try (rows) {
            return rows.squeeze(0);
        }
    }

    /**
     * Returns whether libtorch's kernel supports grouped-query attention. If not, libtorch would
     * hold the scores of all pairs in memory.
     */
    private static boolean sharesHeads(long query) {
        return Tensors.device(query).isGpu() && Tensors.scalarType(query).itemSize() == 2;
    }

    /** Repeats each key head for all query heads that share it. */
    private static NDArray repeated(NDArray x, long heads) {
        Shape shape = x.getShape();
        long times = heads / shape.get(1);
        try (NDArray expanded = x.expandDims(2);
                NDArray all =
                        expanded.broadcast(
                                shape.get(0), shape.get(1), times, shape.get(2), shape.get(3))) {
            return all.reshape(shape.get(0), heads, shape.get(2), shape.get(3));
        }
    }

    /**
     * {@return {@code x sigmoid(x)} for every element of a floating-point type other than float8,
     * as PyTorch's {@code silu}, in one pass} Recorded by autograd.
     */
    public static NDArray silu(NDArray x) {
        PtNDArray array = TorchChecks.array(x, "x");
        long tensor = TorchChecks.tensor(x, "x");
        ScalarType type = Tensors.scalarType(tensor);
        if (!type.isFloatingPoint() || type.isFloat8()) {
            throw new IllegalArgumentException("silu does not support the element type " + type);
        }
        long result = TorchDispatcher.call(TorchDispatcher.Operator.SILU, "Torch.silu", tensor);
        return adopt(array.getManager(), result, null, null);
    }

    /**
     * {@return libtorch's current stream of the calling thread, a {@code cudaStream_t}; 0 is the
     * default stream}
     */
    public static long currentCudaStream(Device device) {
        TorchChecks.usableGpu(device);
        return AotiTorch.currentCudaStream(device.getDeviceId());
    }

    /**
     * Makes a stream the calling thread's current stream in libtorch, and its GPU the current
     * device, until the guard is closed.
     *
     * @param stream a {@code cudaStream_t} of that GPU, which must outlive the guard and the work
     *     queued under it; 0 is the default stream
     * @return the guard; the same thread closes it
     */
    public static CudaStreamGuard cudaStreamGuard(Device device, long stream) {
        TorchChecks.usableGpu(device);
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTorchCuda.aoti_torch_create_cuda_stream_guard(
                        stream, device.getDeviceId(), scratch.slot(0)),
                "Torch.cudaStreamGuard");
        return new CudaStreamGuard(scratch.getLong(0));
    }
}
