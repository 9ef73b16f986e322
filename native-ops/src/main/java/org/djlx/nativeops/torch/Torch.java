/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;
import ai.djl.pytorch.jni.JniUtils;
import java.util.Arrays;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Scratch;

/**
 * What DJL's PyTorch engine does not show of its arrays, through libtorch's stable C interface:
 * addresses, strides, all element types, views of memory, and operators. Those that change an array
 * in place are in {@link TorchInPlace}, of which all that follows holds, too.
 *
 * <p><b>Errors.</b> Arguments are checked first: an {@link IllegalArgumentException} says which one
 * is wrong, be it null, closed, of another engine, sparse, an array of strings, or of a type, shape
 * or device that does not fit. What fails inside libtorch is an {@link EngineException}; where its
 * message does not say why, libtorch wrote that to the standard error stream. If libtorch is not
 * there, methods throw what {@link NativeLibrary#ensureAvailability()} throws.
 *
 * <p><b>Threads.</b> Methods may be called by any thread, and by several at once on arrays that
 * none of them writes. Closing an array, its manager or its memory while another thread is in a
 * method with it is not safe. On a GPU, operators are queued on the calling thread's current stream
 * and return at once. libtorch takes care of arrays that are closed before this stream has passed
 * them; for other streams, {@link CudaStream#keepAlive} does.
 *
 * <p><b>Gradients.</b> {@link #copy}, {@link #cast}, {@link #attention}, {@link #silu} and those in
 * place are recorded by autograd like PyTorch's own if the calling thread has its gradient mode on,
 * which libtorch's threads have unless it is switched off ({@link NoGradient}): writing to an array
 * that was given a gradient is then an {@link EngineException}, and what is computed from one keeps
 * the graph alive. {@link #mmOut} and writes through a view are never recorded.
 */
public final class Torch {

    private Torch() {}

    /**
     * Returns the address of an array's first element, on the array's device. It is valid until the
     * storage is freed, which is when the array and all that share its storage are closed.
     *
     * @param array the array
     * @return the address; 0 if the array has no elements
     */
    public static long dataPointer(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTorch.aoti_torch_get_data_ptr(tensor, scratch.slot(0)), "Torch.dataPointer");
        return scratch.getLong(0);
    }

    /**
     * Returns the size of every dimension.
     *
     * @param array the array
     * @return the sizes, in elements; empty for a scalar
     */
    public static long[] sizes(NDArray array) {
        return Tensors.sizes(TorchChecks.tensor(array, "the array"));
    }

    /**
     * Returns the distance between neighbours along every dimension.
     *
     * @param array the array
     * @return the strides, in elements; empty for a scalar
     */
    public static long[] strides(NDArray array) {
        return Tensors.strides(TorchChecks.tensor(array, "the array"));
    }

    /**
     * Returns the element type, which {@link NDArray#getDataType()} does for those only that DJL
     * can name.
     *
     * @param array the array
     * @return the element type
     * @throws IllegalArgumentException also if the array is quantized
     */
    public static ScalarType scalarType(NDArray array) {
        return Tensors.scalarType(TorchChecks.tensor(array, "the array"));
    }

    /**
     * Returns an array's element type, sizes, strides and address at once.
     *
     * @param array the array
     * @return what {@link #scalarType}, {@link #sizes}, {@link #strides} and {@link #dataPointer}
     *     return
     * @throws IllegalArgumentException also if the array is quantized
     */
    public static TensorInfo info(NDArray array) {
        return Tensors.info(TorchChecks.tensor(array, "the array"));
    }

    /**
     * Returns the device on which an array is.
     *
     * @param array the array
     * @return the device
     */
    public static Device device(NDArray array) {
        return Tensors.device(TorchChecks.tensor(array, "the array"));
    }

    /**
     * Tells whether an array's elements lie one after the other in row-major order, so that its
     * bytes can be copied as one block from {@link #dataPointer}. Arrays of complex numbers are
     * taken not to be contiguous: libtorch conjugates lazily, and has the conjugate in memory.
     *
     * @param array the array
     * @return whether it is contiguous; true if it has no elements and none is complex
     */
    public static boolean isContiguous(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        return Tensors.info(tensor).isContiguous();
    }

    /**
     * Returns a contiguous array whose elements are a range of a memory: nothing is copied.
     *
     * @param manager the manager to which the array belongs; its device does not matter
     * @param memory the memory, of which the array holds a reference until it is closed, by itself
     *     or by its manager. What DJL derives from the array without copying (slices, transposes,
     *     reshapes) shares the memory but holds no reference: close it before the array. If the
     *     array is {@linkplain NDArray#intern interned} into another, the memory is never freed
     * @param offset where the first element is, in bytes from the start of the memory; {@code
     *     memory.address() + offset} is a multiple of the size of an element
     * @param shape the shape, with all sizes known; sizes may be 0
     * @param type the element type
     * @return the array, on the memory's device
     * @throws IllegalArgumentException also if the memory is closed or too small, or the offset
     *     negative or not aligned
     */
    public static NDArray view(
            NDManager manager, NativeMemory memory, long offset, Shape shape, ScalarType type) {
        long[] sizes = sizes(shape);
        return view(manager, memory, offset, sizes, Extents.contiguousStrides(sizes), type);
    }

    /**
     * Returns an array with given strides whose elements lie in a memory: nothing is copied. Apart
     * from the strides it is as {@link #view(NDManager, NativeMemory, long, Shape, ScalarType)}.
     *
     * @param manager the manager to which the array belongs
     * @param memory the memory
     * @param offset where the first element is, in bytes from the start of the memory
     * @param sizes the size of every dimension, at most 64 of them
     * @param strides the stride of every dimension, in elements, not negative; with stride 0, or
     *     smaller than what it steps over, elements share their memory
     * @param type the element type
     * @return the array, on the memory's device
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
        boolean adopted = false;
        try {
            Scratch scratch = Scratch.get();
            AotiTorch.check(
                    AotiTorch.aoti_torch_create_tensor_from_blob(
                            address,
                            sizes.length,
                            scratch.putSizes(sizes),
                            scratch.putStrides(strides),
                            0,
                            type.code(),
                            deviceType,
                            device.getDeviceId(),
                            scratch.slot(0)),
                    "Torch.view");
            NDArray view =
                    adopt(scratch.getLong(0), handle -> new MemoryView(owner, handle, memory));
            adopted = true;
            return view;
        } finally {
            if (!adopted) {
                memory.release();
            }
        }
    }

    private static long viewAddress(
            NativeMemory memory, long offset, long[] sizes, long[] strides, ScalarType type) {
        if (memory == null) {
            throw new IllegalArgumentException("the memory is null");
        }
        long span = Extents.byteSpan(sizes, strides, type.itemSize());
        if (offset < 0 || offset > memory.byteSize() || span > memory.byteSize() - offset) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s of shape %s with strides %s at offset %d needs %d bytes there,"
                                    + " which %s does not have",
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

    private static long[] sizes(Shape shape) {
        if (shape == null) {
            throw new IllegalArgumentException("the shape is null");
        }
        long[] sizes = shape.getShape();
        Extents.requireSizes(sizes);
        return sizes;
    }

    /**
     * Tells whether autograd differentiates with respect to an array, as {@code
     * torch.Tensor.requires_grad}: it is a leaf that requires a gradient, or was computed from one
     * while gradients were on. {@link NDArray#hasGradient()} tells it of leaves alone.
     *
     * @param array the array
     * @return whether it does
     */
    public static boolean requiresGradient(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        return array.hasGradient()
                || !TorchDispatcher.tell(
                        TorchDispatcher.Operator.IS_LEAF, "Torch.requiresGradient", tensor);
    }

    /**
     * Replaces the gradient of an array that requires one, as setting {@code torch.Tensor.grad}.
     * Without a gradient the next backward pass keeps what it computes, where it would add to one
     * that is zero.
     *
     * @param array the array; no backward pass that reaches it is under way
     * @param gradient its new gradient, whose storage it shares from now on, of its shape, type and
     *     device, and not a view of memory that is not libtorch's, nor a slice of an array made
     *     from values of Java, of which that cannot be told; null for none, which DJL's {@link
     *     NDArray#getGradient()} shows as new zeros of float32
     * @throws IllegalArgumentException if the array is to have a gradient and requires none, or the
     *     gradient is not like it, requires one itself, or lies in memory that is not libtorch's
     * @throws EngineException if libtorch does not keep gradients where this expects them
     */
    public static void setGradient(NDArray array, NDArray gradient) {
        long leaf = TorchChecks.tensor(array, "the array");
        if (gradient != null && !array.hasGradient()) {
            throw new IllegalArgumentException(
                    "setGradient: the array requires no gradient, so it cannot have this one");
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
                                        + " %s, %s on %s; its gradient must be alike, require none"
                                        + " itself, and lie in memory of libtorch",
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
     * Returns how many open arrays are the gradient of another, as {@link NDArray#getGradient()}
     * makes them.
     *
     * @param array the other
     * @return their number; 0 also if it has no gradient
     * @throws EngineException if libtorch does not keep gradients where this expects them
     */
    public static int gradientHolders(NDArray array) {
        return GradientSlot.holders(TorchChecks.tensor(array, "the array"));
    }

    /**
     * Returns how often operators of libtorch have written to an array in place, directly or
     * through views; kernels and copies that know its address alone are not counted.
     *
     * @param array the array
     * @return the number
     * @throws EngineException if libtorch does not count for it, as in its inference mode
     */
    public static long version(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        return TorchDispatcher.number(TorchDispatcher.Operator.VERSION, "Torch.version", tensor);
    }

    /**
     * Returns a second array on the storage of an array. The storage lives until both are closed,
     * so that work under way can hold on to an array that its owner may close. That goes for the
     * array itself: what DJL derives from an array without copying (slices, transposes, reshapes)
     * is valid only as long as the array it comes from, and so is an alias of that.
     *
     * @param manager the manager to which the new array belongs
     * @param array the array
     * @return the new array, of the same device, shape, strides and element type
     */
    public static NDArray alias(NDManager manager, NDArray array) {
        PtNDManager owner = TorchChecks.manager(manager);
        PtNDArray original = TorchChecks.array(array, "the array");
        long tensor = TorchChecks.tensor(array, "the array");
        NativeMemory memory = original instanceof MemoryView view ? view.retainMemory() : null;
        boolean adopted = false;
        try {
            Scratch scratch = Scratch.get();
            AotiTorch.check(
                    AotiTorch.aoti_torch_new_tensor_handle(tensor, scratch.slot(0)), "Torch.alias");
            NDArray alias =
                    adopt(
                            scratch.getLong(0),
                            handle ->
                                    memory == null
                                            ? new PtNDArray(
                                                    owner, handle, BufferOfArray.get(original))
                                            : new MemoryView(owner, handle, memory));
            adopted = true;
            return alias;
        } finally {
            if (!adopted && memory != null) {
                memory.release();
            }
        }
    }

    /**
     * Returns a range of an array along a dimension, as PyTorch's {@code narrow}: nothing is
     * copied, and no index is parsed. Recorded by autograd.
     *
     * @param array the array, as long as which the result is valid
     * @param dimension the dimension, from 0
     * @param start where the range begins, in elements along that dimension
     * @param length how long it is
     * @return the range, of as many dimensions, in the array's manager
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
                            "an array of shape %s has no %d elements from %d on in dimension %d",
                            Arrays.toString(sizes), length, start, dimension));
        }
        return JniUtils.slice(whole, dimension, start, start + length, 1);
    }

    /**
     * Makes an array empty, of shape (0), also for all who have the same tensor: where something
     * has kept a reference to a tensor and will not give it up, so that its storage goes. Arrays of
     * other tensors on the storage, such as views, keep it.
     *
     * @param array the array
     */
    public static void makeEmpty(NDArray array) {
        TorchDispatcher.call(
                TorchDispatcher.Operator.SET_,
                "Torch.makeEmpty",
                TorchChecks.tensor(array, "the array"));
    }

    /**
     * Returns a new contiguous array whose elements are not initialised.
     *
     * @param manager the manager to which the array belongs and on whose device it is
     * @param shape the shape, with all sizes known; sizes may be 0
     * @param type the element type
     * @return the array
     * @throws EngineException also if there is not enough memory
     */
    public static NDArray empty(NDManager manager, Shape shape, ScalarType type) {
        PtNDManager owner = TorchChecks.manager(manager);
        return empty(owner, sizes(shape), type, owner.getDevice(), "Torch.empty");
    }

    private static NDArray empty(
            PtNDManager owner, long[] sizes, ScalarType type, Device device, String operation) {
        TorchChecks.type(type);
        long[] strides = Extents.contiguousStrides(sizes);
        Extents.byteSpan(sizes, strides, type.itemSize());
        int deviceType = TorchChecks.usableDeviceType(device);
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTorch.aoti_torch_empty_strided(
                        sizes.length,
                        scratch.putSizes(sizes),
                        scratch.putStrides(strides),
                        type.code(),
                        deviceType,
                        device.getDeviceId(),
                        scratch.slot(0)),
                operation);
        return adopt(scratch.getLong(0), handle -> new PtNDArray(owner, handle));
    }

    private interface Adopter {
        NDArray adopt(long tensor);
    }

    /** Makes an array own a new tensor, or deletes the tensor. */
    private static NDArray adopt(long tensor, Adopter adopter) {
        try {
            return adopter.adopt(tensor);
        } catch (IllegalStateException e) {
            AotiTorch.check(AotiTorch.aoti_torch_delete_tensor_object(tensor), "Torch.adopt");
            throw new IllegalArgumentException("the manager takes no array: " + e.getMessage(), e);
        }
    }

    /**
     * Copies all elements of an array into another of the same shape, converting them if the types
     * differ. Conversions are those of PyTorch's {@code copy_}: to a narrower floating-point type
     * they round to nearest even, to an integer they truncate. From one device to another the call
     * waits for the copy; on one GPU it is queued like any operator.
     *
     * @param dst the array to write; it may have any strides. Must not partly overlap {@code src}
     * @param src the array to read
     */
    public static void copy(NDArray dst, NDArray src) {
        long to = TorchChecks.tensor(dst, "the destination");
        long from = TorchChecks.tensor(src, "the source");
        Tensors.scalarType(to);
        Tensors.scalarType(from);
        Tensors.requireSameShape("the destination", to, "the source", from);
        AotiTorch.check(AotiTorch.aoti_torch_copy_(to, from, 0), "Torch.copy");
    }

    /**
     * Returns a contiguous copy of an array with another element type, also one that {@link
     * NDArray#toType} cannot name. Elements are converted as by {@link #copy}.
     *
     * @param array the array
     * @param type the element type of the result; may be that of the array
     * @return a new array, in the array's manager and on its device
     */
    public static NDArray cast(NDArray array, ScalarType type) {
        PtNDArray source = TorchChecks.array(array, "the array");
        long from = TorchChecks.tensor(source, "the array");
        Tensors.scalarType(from);
        NDArray result =
                empty(
                        source.getManager(),
                        Tensors.sizes(from),
                        type,
                        Tensors.device(from),
                        "Torch.cast");
        boolean copied = false;
        try {
            AotiTorch.check(
                    AotiTorch.aoti_torch_copy_(TorchChecks.tensor(result, "the result"), from, 0),
                    "Torch.cast");
            copied = true;
            return result;
        } finally {
            if (!copied) {
                result.close();
            }
        }
    }

    /**
     * Multiplies two matrices: {@code out = a b}. The arrays may have any strides; an {@code out}
     * whose rows or columns are not contiguous costs libtorch a temporary matrix and a copy. Never
     * recorded by autograd.
     *
     * @param out the matrix to write, of shape (m, n); must not overlap {@code a} or {@code b}
     * @param a a matrix of shape (m, k)
     * @param b a matrix of shape (k, n); with k = 0 the result is zeros
     * @throws IllegalArgumentException also unless all three are of one type out of float16,
     *     bfloat16, float32 and float64, and on one device
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
            throw new IllegalArgumentException("matrices of " + type + " cannot be multiplied");
        }
        Tensors.requireSameDevice("out", result, "a", left);
        Tensors.requireSameDevice("out", result, "b", right);
        AotiTorch.check(
                Tensors.device(result).isGpu()
                        ? AotiTorchCuda.aoti_torch_cuda_mm_out(result, left, right)
                        : AotiTorch.aoti_torch_cpu_mm_out(result, left, right),
                "Torch.mmOut");
    }

    /**
     * Computes attention, {@code softmax(query keyᵀ / sqrt(size)) value} for each head (Vaswani et
     * al., 2017, <a href="https://arxiv.org/abs/1706.03762">arXiv:1706.03762</a>), as PyTorch's
     * {@code scaled_dot_product_attention}. Recorded by autograd. Where libtorch has a kernel for
     * it, as on CPUs and for 16-bit types on GPUs, the scores of all pairs are never in memory at
     * once (Dao et al., 2022, <a href="https://arxiv.org/abs/2205.14135">arXiv:2205.14135</a>). On
     * a GPU where that is cuDNN's, each new shape takes the calling thread once some 45 ms, so that
     * few lengths, filled up to, are faster than many.
     *
     * @param query of shape (batch, heads, queries, size), of a floating-point type
     * @param key of shape (batch, heads of keys, keys, size). Where there are fewer heads than the
     *     query has, by a whole factor, so many heads of queries share each, one after the other
     * @param value of the key's shape
     * @param causal whether a query sees no key after the one at its own place
     * @return the result, of the query's shape and type and in its manager
     * @throws IllegalArgumentException also unless all three are of one type and on one device
     */
    public static NDArray attention(NDArray query, NDArray key, NDArray value, boolean causal) {
        PtNDArray array = TorchChecks.array(query, "the query");
        long queries = TorchChecks.tensor(query, "the query");
        long keys = TorchChecks.tensor(key, "the key");
        long values = TorchChecks.tensor(value, "the value");
        Tensors.requireAttention(queries, keys, values);
        long heads = Tensors.sizes(queries)[1];
        boolean grouped = heads != Tensors.sizes(keys)[1];
        if (grouped && !sharesHeads(queries)) {
            try (NDArray ownKeys = repeated(key, heads);
                    NDArray ownValues = repeated(value, heads)) {
                return attention(query, ownKeys, ownValues, causal);
            }
        }
        long result =
                TorchDispatcher.attention(
                        "Torch.attention", queries, keys, values, causal, grouped);
        return adopt(result, handle -> new PtNDArray(array.getManager(), handle));
    }

    /**
     * Computes causal attention of a sequence's last places to all of it, as PyTorch's {@code
     * causal_lower_right}: the last query sees all keys, each one before it a key less. By
     * FlashAttention 2 (Dao, 2023, <a
     * href="https://arxiv.org/abs/2307.08691">arXiv:2307.08691</a>), with which the scores of all
     * pairs are never in memory at once. Has no gradient.
     *
     * <p>Rows of all three are contiguous and begin at multiples of 16 bytes.
     *
     * @param query of shape (batch, heads, queries, size) on a GPU of compute capability 8.0 or
     *     more, and none of these 0; float16 or bfloat16, and the size a multiple of 8 up to 256
     * @param key of shape (batch, heads of keys, keys, size), with as many keys as queries or more.
     *     Where there are fewer heads than the query has, by a whole factor, so many heads of
     *     queries share each, one after the other
     * @param value of the key's shape
     * @return the result, of the query's shape and type and in its manager
     * @throws IllegalArgumentException also unless all three are of one type and on one device, and
     *     if one of them requires a gradient
     */
    public static NDArray attentionOfLast(NDArray query, NDArray key, NDArray value) {
        PtNDArray array = TorchChecks.array(query, "the query");
        long queries = TorchChecks.tensor(query, "the query");
        long keys = TorchChecks.tensor(key, "the key");
        long values = TorchChecks.tensor(value, "the value");
        Tensors.requireAttention(queries, keys, values);
        for (NDArray each : new NDArray[] {query, key, value}) {
            if (NoGradient.isRecorded(each)) {
                throw new IllegalArgumentException(
                        "attentionOfLast has no gradient, which the array "
                                + each.getShape()
                                + " requires; use Torch.attention, or NoGradient");
            }
        }
        Tensors.requireAttentionOfLast(Tensors.sizes(queries), Tensors.sizes(keys));
        if (!sharesHeads(queries)) {
            throw new IllegalArgumentException(
                    String.format(
                            "attentionOfLast takes float16 and bfloat16 on a GPU, not %s on %s",
                            Tensors.scalarType(queries), query.getDevice()));
        }
        Tensors.requireAligned("the query", queries);
        Tensors.requireAligned("the key", keys);
        Tensors.requireAligned("the value", values);
        try (NDArray q = query.transpose(0, 2, 1, 3);
                NDArray k = key.transpose(0, 2, 1, 3);
                NDArray v = value.transpose(0, 2, 1, 3)) {
            long result =
                    TorchDispatcher.flashAttention(
                            "Torch.attentionOfLast",
                            TorchChecks.tensor(q, "the query"),
                            TorchChecks.tensor(k, "the key"),
                            TorchChecks.tensor(v, "the value"),
                            q.getShape().get(1),
                            k.getShape().get(1));
            try (NDArray output =
                    adopt(result, handle -> new PtNDArray(array.getManager(), handle))) {
                return output.transpose(0, 2, 1, 3);
            }
        }
    }

    /**
     * Tells whether libtorch's kernels let heads share keys. Where they do not, it would put the
     * scores of all pairs into memory.
     */
    private static boolean sharesHeads(long query) {
        return Tensors.device(query).isGpu() && Tensors.scalarType(query).itemSize() == 2;
    }

    /** Copies each head as often as queries share it. */
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
     * Computes {@code x sigmoid(x)}, element by element, as PyTorch's {@code silu}, in one pass.
     * Recorded by autograd.
     *
     * @param x an array of a floating-point type other than float8
     * @return the result, of the same shape and type and in the same manager
     */
    public static NDArray silu(NDArray x) {
        PtNDArray array = TorchChecks.array(x, "x");
        long tensor = TorchChecks.tensor(x, "x");
        ScalarType type = Tensors.scalarType(tensor);
        if (!type.isFloatingPoint() || type.isFloat8()) {
            throw new IllegalArgumentException("there is no silu of " + type);
        }
        long result = TorchDispatcher.tensor(TorchDispatcher.Operator.SILU, "Torch.silu", tensor);
        return adopt(result, handle -> new PtNDArray(array.getManager(), handle));
    }

    /**
     * Returns the stream on which libtorch queues the calling thread's work for a GPU.
     *
     * @param device the GPU
     * @return the {@code cudaStream_t}; 0 is the default stream
     * @throws IllegalArgumentException if the device is not a GPU that libtorch can use
     */
    public static long currentCudaStream(Device device) {
        TorchChecks.usableGpu(device);
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTorchCuda.aoti_torch_get_current_cuda_stream(
                        device.getDeviceId(), scratch.slot(0)),
                "Torch.currentCudaStream");
        return scratch.getLong(0);
    }

    /**
     * Makes a stream libtorch's current one for the calling thread, and its GPU the current device,
     * until the guard is closed.
     *
     * @param device the GPU
     * @param stream a {@code cudaStream_t} of that GPU, which must outlive the guard and the work
     *     queued under it; 0 is the default stream
     * @return the guard, to be closed by the same thread
     * @throws IllegalArgumentException if the device is not a GPU that libtorch can use
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
