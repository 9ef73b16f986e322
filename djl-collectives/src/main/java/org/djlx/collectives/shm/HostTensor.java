/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.shm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.concurrent.atomic.LongAdder;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.TensorHold;
import org.djlx.nativeops.Torch;

/**
 * The elements of a tensor as one run of host memory, from when an operation is issued until it has
 * ended. It keeps the tensor's storage alive even if the array is closed meanwhile; a tensor that
 * is not contiguous is copied.
 */
final class HostTensor implements AutoCloseable {

    private static final LongAdder OPEN = new LongAdder();

    private final TensorHold original;
    // Of a tensor that is not contiguous: the tensor and its copy.
    private final NDArray strided;
    private final NDArray copy;
    private final long address;

    private HostTensor(NDManager manager, NDArray tensor, boolean input) {
        original = new TensorHold(tensor);
        OPEN.increment();
        if (original.isContiguous()) {
            strided = null;
            copy = null;
            address = original.address();
        } else {
            strided = Torch.alias(manager, tensor);
            copy = Torch.empty(manager, new Shape(Torch.sizes(tensor)), original.type());
            address = Torch.dataPointer(copy);
            if (input) {
                Torch.copy(copy, strided);
            }
        }
    }

    static HostTensor input(NDManager manager, NDArray tensor) {
        return new HostTensor(manager, tensor, true);
    }

    /** For a tensor that is written as a whole. */
    static HostTensor output(NDManager manager, NDArray tensor) {
        return new HostTensor(manager, tensor, false);
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
        return original.count();
    }

    ScalarType type() {
        return original.type();
    }

    long byteSize() {
        return count() * type().itemSize();
    }

    /** Brings what was written into the tensor, if it is not there yet. */
    void flush() {
        if (copy != null) {
            Torch.copy(strided, copy);
        }
    }

    /** To be called once. */
    @Override
    public void close() {
        if (copy != null) {
            copy.close();
            strided.close();
        }
        original.close();
        OPEN.decrement();
    }
}
