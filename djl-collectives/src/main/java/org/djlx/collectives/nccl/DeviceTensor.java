/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.Arrays;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * The elements of a tensor as one run of GPU memory, from when an operation is issued until it has
 * ended. It keeps the tensor's storage alive even if the array is closed meanwhile: DJL would give
 * the memory to the next array of the current stream. A tensor that is not contiguous is copied, on
 * the current stream.
 */
final class DeviceTensor implements AutoCloseable {

    private final NDArray original;
    private final NDArray contiguous;
    private final ScalarType type;
    private final long count;
    private final long address;

    private DeviceTensor(NDManager manager, NDArray tensor, boolean input) {
        original = Torch.alias(manager, tensor);
        type = Torch.scalarType(original);
        long[] sizes = Torch.sizes(original);
        count = Arrays.stream(sizes).reduce(1, (a, b) -> a * b);
        if (Torch.isContiguous(original)) {
            contiguous = original;
        } else {
            contiguous = Torch.empty(manager, new Shape(sizes), type);
            if (input) {
                copy(contiguous, original);
            }
        }
        address = Torch.dataPointer(contiguous);
    }

    static DeviceTensor input(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, true);
    }

    /** For a tensor that is written as a whole. */
    static DeviceTensor output(NDManager manager, NDArray tensor) {
        return new DeviceTensor(manager, tensor, false);
    }

    long address() {
        return address;
    }

    /** The number of elements. */
    long count() {
        return count;
    }

    ScalarType type() {
        return type;
    }

    long byteSize() {
        return count * type.itemSize();
    }

    /** Tells whether the memory is a copy's, as the tensor is not contiguous. */
    boolean isStaged() {
        return contiguous != original;
    }

    /** Brings what was written into the copy to the tensor, on the current stream. */
    void flush() {
        copy(original, contiguous);
    }

    /** Copies on the current stream; autograd does not see it. */
    private static void copy(NDArray target, NDArray source) {
        boolean gradients = JniUtils.isGradMode();
        JniUtils.setGradMode(false);
        try {
            Torch.copy(target, source);
        } finally {
            JniUtils.setGradMode(gradients);
        }
    }

    @Override
    public void close() {
        contiguous.close();
        original.close();
    }
}
