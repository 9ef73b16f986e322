/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.shm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * The elements of a tensor as one run of host memory, from when an operation is issued until it has
 * ended. It keeps the tensor's storage alive even if the array is closed meanwhile; a tensor that
 * is not contiguous is copied.
 */
final class HostTensor implements AutoCloseable {

    private final NDArray original;
    private final NDArray contiguous;

    private HostTensor(NDManager manager, NDArray tensor, boolean input) {
        original = Torch.alias(manager, tensor);
        if (Torch.isContiguous(original)) {
            contiguous = original;
        } else {
            contiguous =
                    Torch.empty(
                            manager, new Shape(Torch.sizes(original)), Torch.scalarType(original));
            if (input) {
                Torch.copy(contiguous, original);
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

    long address() {
        return Torch.dataPointer(contiguous);
    }

    /** The number of elements. */
    long count() {
        return Arrays.stream(Torch.sizes(contiguous)).reduce(1, (a, b) -> a * b);
    }

    ScalarType type() {
        return Torch.scalarType(contiguous);
    }

    long byteSize() {
        return count() * type().itemSize();
    }

    /** Brings what was written into the tensor, if it is not there yet. */
    void flush() {
        if (contiguous != original) {
            Torch.copy(original, contiguous);
        }
    }

    @Override
    public void close() {
        contiguous.close();
        original.close();
    }
}
