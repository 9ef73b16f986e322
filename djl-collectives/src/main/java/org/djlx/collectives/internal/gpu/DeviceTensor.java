// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorHold;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The elements of a tensor in contiguous GPU memory, from the call of an operation to its end.
 *
 * <ul>
 *   <li>Keeps the tensor's storage alive even if the array is closed before the end. Otherwise,
 *       libtorch would give the memory to the next array of the current stream.
 *   <li>Uses a copy if the tensor is not contiguous, or if asked for ({@link #copied}). {@link
 *       #load} fills the copy on the operation's stream because earlier operations may still write
 *       the tensor.
 * </ul>
 */
public final class DeviceTensor implements AutoCloseable {

    private final NDArray original; // an alias; null if there is no copy
    private final NDArray contiguous; // the copy, or null
    private final TensorHold hold; // on the tensor or its copy
    private final TensorInfo info;
    private final long address;
    private final boolean input;

    /** Copies a tensor. */
    private DeviceTensor(NDManager manager, NDArray tensor, boolean input) {
        this.input = input;
        original = Torch.alias(manager, tensor);
        info = Torch.info(original);
        try {
            contiguous = Torch.empty(manager, new Shape(info.sizes()), info.type());
            hold = new TensorHold(contiguous);
            address = Torch.dataPointer(contiguous);
        } catch (Throwable e) {
            original.close(); // Otherwise the tensor would live as long as the manager.
            throw e;
        }
    }

    /**
     * Wraps a contiguous tensor. Makes no alias of the array, because making it would cost most of
     * the time.
     */
    private DeviceTensor(NDArray tensor, TensorInfo info, boolean input) {
        this.info = info;
        this.input = input;
        hold = TensorHold.ofChecked(tensor);
        original = null;
        contiguous = null;
        address = info.address();
    }

    /** Wraps a contiguous tensor with known properties, which is read and written. */
    static DeviceTensor inPlace(NDArray tensor, TensorInfo info) {
        return new DeviceTensor(tensor, info, true);
    }

    /** Copies a tensor that is read and written. */
    static DeviceTensor copied(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, true);
    }

    /** Wraps a tensor that is read, or read and written. The manager owns a copy. */
    public static DeviceTensor input(NDManager manager, NDArray tensor) {
        return of(manager, tensor, Torch.info(tensor), true);
    }

    /** Wraps a tensor; the operation writes all its elements. The manager owns a copy. */
    public static DeviceTensor output(NDManager manager, NDArray tensor) {
        return of(manager, tensor, Torch.info(tensor), false);
    }

    /** As {@link #input} or {@link #output}, with the tensor's properties. */
    public static DeviceTensor of(
            NDManager manager, NDArray tensor, TensorInfo info, boolean input) {
        return info.isContiguous()
                ? new DeviceTensor(tensor, info, input)
                : new DeviceTensor(manager, tensor, input);
    }

    /** Keeps the memory that a captured operation uses, as long as the graph of the stream. */
    public void keepIn(CudaStream captured, NDArray tensor) {
        captured.keepAlive(
                isStaged() ? new NDArray[] {original, contiguous} : new NDArray[] {tensor});
    }

    public long address() {
        return address;
    }

    public long count() {
        return info.count();
    }

    public ScalarType type() {
        return info.type();
    }

    /** Returns the number of elements of {@link #realType}. */
    public long realCount() {
        return info.realCount();
    }

    /** Returns the type that reductions compute with: of a complex type, that of its parts. */
    public ScalarType realType() {
        return info.type().real();
    }

    public long byteSize() {
        return info.byteSize();
    }

    boolean isStaged() {
        return contiguous != null;
    }

    /** Copies an input's elements into the copy, on the current stream. */
    void load() {
        if (input) {
            copy(contiguous, original);
        }
    }

    /** Copies the elements from the copy to the tensor, on the current stream. */
    void flush() {
        copy(original, contiguous);
    }

    /** Copies on the current stream, outside of autograd. */
    private static void copy(NDArray target, NDArray source) {
        NoGradient.run(() -> Torch.copy(target, source));
    }

    @Override
    public void close() {
        hold.close();
        if (original != null) {
            contiguous.close();
            original.close();
        }
    }
}
