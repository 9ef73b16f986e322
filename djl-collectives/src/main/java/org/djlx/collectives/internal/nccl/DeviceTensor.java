/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorHold;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The elements of a tensor as one run of GPU memory, from when an operation is issued until it has
 * ended. It keeps the tensor's storage alive even if the array is closed meanwhile: DJL would give
 * the memory to the next array of the current stream. A tensor that is not contiguous, or must not
 * be touched where it lies, is copied by {@link #load}, in its turn: an operation before may write
 * it.
 */
final class DeviceTensor implements AutoCloseable {

    private final NDArray original; // null if the hold is all that is needed
    private final NDArray contiguous; // likewise
    private final TensorHold hold; // of a copy too, which ends with the manager; or null
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
        boolean done = false;
        try {
            contiguous = Torch.empty(manager, new Shape(info.sizes()), info.type());
            hold = new TensorHold(contiguous);
            address = Torch.dataPointer(contiguous);
            done = true;
        } finally {
            if (!done) {
                original.close(); // Otherwise the tensor would live as long as the manager.
            }
        }
    }

    /** A contiguous tensor, which needs no array: that is most of the cost. */
    private DeviceTensor(NDArray tensor, TensorInfo info) {
        this.info = info;
        input = true;
        hold = new TensorHold(tensor);
        original = null;
        contiguous = null;
        address = info.address();
    }

    /** For a contiguous tensor of which much is known already, and that is read and written. */
    static DeviceTensor inPlace(NDArray tensor, TensorInfo info) {
        return new DeviceTensor(tensor, info);
    }

    /** For a tensor that is read and written, but not where it lies. */
    static DeviceTensor copied(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, true, true);
    }

    static DeviceTensor input(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, true, false);
    }

    /** For a tensor that is written as a whole. */
    static DeviceTensor output(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, false, false);
    }

    long address() {
        return address;
    }

    /** The number of elements. */
    long count() {
        return info.count();
    }

    ScalarType type() {
        return info.type();
    }

    long byteSize() {
        return info.byteSize();
    }

    /** Tells whether the memory is a copy's. */
    boolean isStaged() {
        return contiguous != original;
    }

    /** Brings an input's elements into the copy, on the current stream. */
    void load() {
        if (input) {
            copy(contiguous, original);
        }
    }

    /** Brings what was written into the copy to the tensor, on the current stream. */
    void flush() {
        copy(original, contiguous);
    }

    /** Copies on the current stream; autograd does not see it. */
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
