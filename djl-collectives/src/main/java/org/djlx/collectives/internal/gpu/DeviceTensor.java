// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
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

    private final NDArray original; // null if the hold suffices
    private final NDArray contiguous; // the original or a copy; null if the hold suffices
    private final TensorHold
            hold; // on the tensor or its copy; null if there is no tensor and no copy
    private final TensorInfo info;
    private final long address;
    private final boolean input;

    private DeviceTensor(NDManager manager, NDArray tensor, boolean input, boolean copied) {
        this.input = input;
        original = Torch.alias(manager, tensor);
        info = Torch.info(original);
        if (info.isContiguous() && !copied) {
            contiguous = original;
            hold = null;
            address = info.address();
            return;
        }
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
    private DeviceTensor(NDArray tensor, TensorInfo info) {
        this.info = info;
        input = true;
        hold = new TensorHold(tensor);
        original = null;
        contiguous = null;
        address = info.address();
    }

    /** Wraps a contiguous tensor with known properties, which is read and written. */
    static DeviceTensor inPlace(NDArray tensor, TensorInfo info) {
        return new DeviceTensor(tensor, info);
    }

    /** Copies a tensor that is read and written. */
    static DeviceTensor copied(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, true, true);
    }

    /** Wraps a tensor that is read, or read and written. The manager owns a copy. */
    public static DeviceTensor input(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, true, false);
    }

    /** Wraps a tensor; the operation writes all its elements. The manager owns a copy. */
    public static DeviceTensor output(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, false, false);
    }

    /** Returns the address of the first element. */
    public long address() {
        return address;
    }

    /** Returns the number of elements. */
    public long count() {
        return info.count();
    }

    /** Returns the type of the elements. */
    public ScalarType type() {
        return info.type();
    }

    /** Returns the size of the elements in bytes. */
    public long byteSize() {
        return info.byteSize();
    }

    /** Returns whether the memory is a copy. */
    boolean isStaged() {
        return contiguous != original;
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
        if (hold != null) {
            hold.close();
        }
        if (original != null) {
            contiguous.close();
            original.close();
        }
    }
}
