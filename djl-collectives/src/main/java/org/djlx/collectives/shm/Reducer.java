/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.shm;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.NativeMemory;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * Reduces what all ranks have contributed, in rank order, with libtorch's vectorised operators on
 * views of the memory. 16-bit floating-point types are accumulated in float32 and rounded once. So
 * the result has the same bits whichever rank computes it.
 */
final class Reducer {

    private final NDManager manager;

    Reducer(NDManager manager) {
        this.manager = manager;
    }

    /**
     * Reduces.
     *
     * @param result address of the result; may be none of the parts
     * @param parts addresses of the contributions, in rank order
     * @param count the number of elements of each
     * @param type the element type
     * @param op how to reduce
     */
    void reduce(long result, long[] parts, long count, ScalarType type, ReduceOp op) {
        if (count == 0) {
            return;
        }
        try (NDArray out = view(result, count, type)) {
            NDArray sum = out;
            if (type.isReducedFloatingPoint()) {
                sum = Torch.empty(manager, new Shape(count), ScalarType.FLOAT32);
            }
            try {
                for (int rank = 0; rank < parts.length; rank++) {
                    try (NDArray part = view(parts[rank], count, type)) {
                        if (rank == 0) {
                            Torch.copy(sum, part);
                        } else {
                            accumulate(sum, part, op);
                        }
                    }
                }
                if (op == ReduceOp.AVG) {
                    Torch.divInPlace(sum, parts.length);
                }
                if (sum != out) {
                    Torch.copy(out, sum);
                }
            } finally {
                sum.close();
            }
        }
    }

    private static void accumulate(NDArray sum, NDArray part, ReduceOp op) {
        switch (op) {
            case SUM:
            case AVG:
                Torch.addInPlace(sum, part);
                break;
            case PRODUCT:
                Torch.mulInPlace(sum, part);
                break;
            case MIN:
                Torch.minInPlace(sum, part);
                break;
            case MAX:
                Torch.maxInPlace(sum, part);
                break;
            default:
                throw new AssertionError(op);
        }
    }

    private NDArray view(long address, long count, ScalarType type) {
        long bytes = count * type.itemSize();
        NativeMemory memory = new NativeMemory(address, bytes, Device.cpu(), () -> {});
        return Torch.view(manager, memory, 0, new Shape(count), type);
    }
}
