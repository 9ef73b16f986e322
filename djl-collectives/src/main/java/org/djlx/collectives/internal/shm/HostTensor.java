/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

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
 * The elements of a tensor as one run of host memory, from when an operation is issued until it has
 * ended. It keeps the tensor's storage alive even if the array is closed meanwhile. A tensor that
 * is not contiguous is copied by {@link #load}: when the operation runs, as one before it may write
 * the tensor.
 */
final class HostTensor implements AutoCloseable {

    private static final LongAdder OPEN = new LongAdder();

    private final TensorHold original;
    private final TensorInfo info;
    // Of a tensor that is not contiguous: the tensor and its copy.
    private final NDArray strided;
    private final NDArray copy;
    private final long address;
    private final boolean input;

    private HostTensor(NDManager manager, NDArray tensor, TensorInfo info, boolean input) {
        this.info = info;
        // First what may find no memory: nothing is held then.
        if (info.isContiguous()) {
            strided = null;
            copy = null;
            address = info.address();
        } else {
            copy = Torch.empty(manager, new Shape(info.sizes()), info.type());
            address = Torch.dataPointer(copy);
            strided = Torch.alias(manager, tensor);
        }
        this.input = input;
        original = new TensorHold(tensor);
        OPEN.increment();
    }

    static HostTensor input(NDManager manager, NDArray tensor, TensorInfo info) {
        return new HostTensor(manager, tensor, info, true);
    }

    /** For a tensor that is written as a whole. */
    static HostTensor output(NDManager manager, NDArray tensor, TensorInfo info) {
        return new HostTensor(manager, tensor, info, false);
    }

    private static void copy(NDArray target, NDArray source) {
        NoGradient.run(() -> Torch.copy(target, source));
    }

    /** The number of tensors in this JVM that are not closed. */
    static long open() {
        return OPEN.sum();
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

    /** Makes the elements of an input be at {@link #address}; to be called before they are read. */
    void load() {
        if (input && copy != null) {
            copy(copy, strided);
        }
    }

    /** Brings what was written into the tensor, if it is not there yet. */
    void flush() {
        if (copy != null) {
            copy(strided, copy);
        }
    }

    /** To be called once. */
    @Override
    public void close() {
        OPEN.decrement();
        try (original;
                strided;
                copy) {
            // What frees the memory may be the caller's code, and throw.
        }
    }
}
