// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.concurrent.atomic.LongAdder;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorHold;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The elements of a tensor as contiguous host memory, from the issue of an operation to its end. A
 * transport reads and writes them at {@link #address}.
 *
 * <p>It keeps the tensor's storage alive, even if the array is closed before the end. A
 * non-contiguous tensor is copied when the operation runs, not earlier, because a previous
 * operation may write the tensor.
 */
public final class HostTensor {

    /** How the operation accesses a tensor. It writes all elements or none. */
    enum Access {
        READ,
        WRITE,
        UPDATE
    }

    private static final LongAdder OPEN = new LongAdder();

    private final TensorHold original;
    private final TensorInfo info;
    // For a non-contiguous tensor: the tensor and its contiguous copy; otherwise null.
    private final NDArray strided;
    private final NDArray copy;
    private final long address;
    private final Access access;
    private boolean leaked;

    /** Opens a tensor. */
    HostTensor(NDManager manager, NDArray tensor, TensorInfo info, Access access) {
        this.info = info;
        this.access = access;
        // Allocate first: on failure nothing is held yet.
        if (info.isContiguous()) {
            strided = null;
            copy = null;
            address = info.address();
        } else {
            copy = Torch.empty(manager, new Shape(info.sizes()), info.type());
            address = Torch.dataPointer(copy);
            strided = Torch.alias(manager, tensor);
        }
        original = TensorHold.ofChecked(tensor);
        OPEN.increment();
    }

    private static void copy(NDArray target, NDArray source) {
        NoGradient.run(() -> Torch.copy(target, source));
    }

    /** Returns whether the operation only reads the tensor. */
    boolean isRead() {
        return access == Access.READ;
    }

    /** Returns the number of open instances in this JVM. */
    static long open() {
        return OPEN.sum();
    }

    /** {@return the address of the elements} */
    public long address() {
        return address;
    }

    /** {@return the number of elements} */
    public long count() {
        return info.count();
    }

    /** {@return the element type} */
    public ScalarType type() {
        return info.type();
    }

    /** {@return the size of the elements in bytes} */
    public long byteSize() {
        return info.byteSize();
    }

    /** Loads the elements to {@link #address}, if the operation reads them. */
    void load() {
        if (access != Access.WRITE && copy != null) {
            copy(copy, strided);
        }
    }

    /** Writes the elements at {@link #address} back to the tensor, if the operation wrote them. */
    void flush() {
        if (access != Access.READ && copy != null) {
            copy(strided, copy);
        }
    }

    /** Makes {@link #close} keep the memory, as a failed operation may still access it. */
    void leak() {
        leaked = true;
    }

    /** Releases the tensor; called once. */
    void close() {
        if (leaked) {
            return;
        }
        OPEN.decrement();
        try (original;
                strided;
                copy) {
            // Freeing the memory may run the caller's code, which may throw.
        }
    }
}
