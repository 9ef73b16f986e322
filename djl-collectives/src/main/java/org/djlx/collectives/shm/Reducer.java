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
import org.djlx.collectives.Reductions;
import org.djlx.nativeops.NativeMemory;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * Reduces what all ranks have contributed, in rank order, with libtorch's vectorised operators on
 * views of the memory, or, where that is little, with {@link JavaSums}. 16-bit floating-point types
 * are accumulated in float32 and rounded once. So the result has the same bits whichever rank
 * computes it.
 */
final class Reducer {

    private final NDManager manager;
    private final JavaSums javaSums = new JavaSums();

    Reducer(NDManager manager) {
        this.manager = manager;
    }

    /**
     * Reduces.
     *
     * @param result address of the result. It may be one of the parts; if that is not the first,
     *     the first may be overwritten as well
     * @param parts addresses of the contributions, in rank order
     * @param count the number of elements of each
     * @param type the element type
     * @param op how to reduce
     */
    void reduce(long result, long[] parts, long count, ScalarType type, ReduceOp op) {
        if (count == 0) {
            return;
        }
        if (JavaSums.canAdd(count, type, op)) {
            javaSums.add(result, parts, count, type);
            return;
        }
        boolean scaled = op.kind() == ReduceOp.Kind.PREMUL_SUM;
        if (type.isReducedFloatingPoint() || scaled) {
            ScalarType wide = type == ScalarType.FLOAT64 ? type : ScalarType.FLOAT32;
            try (NDArray sum = Torch.empty(manager, new Shape(count), wide);
                    NDArray out = view(result, count, type)) {
                accumulate(sum, parts, count, type, op);
                finish(sum, parts.length, op);
                Torch.copy(out, sum);
            }
        } else {
            try (NDArray out = view(result, count, type)) {
                accumulateInPlace(out, result, parts, count, type, op);
                finish(out, parts.length, op);
            }
        }
    }

    /** Accumulates in an array of its own, from parts that stay as they are. */
    private void accumulate(NDArray sum, long[] parts, long count, ScalarType type, ReduceOp op) {
        boolean scaled = op.kind() == ReduceOp.Kind.PREMUL_SUM;
        try (NDArray product =
                Torch.empty(manager, new Shape(scaled ? count : 0), Torch.scalarType(sum))) {
            for (int rank = 0; rank < parts.length; rank++) {
                try (NDArray part = view(parts[rank], count, type)) {
                    NDArray term = part;
                    if (scaled) {
                        Torch.copy(product, part);
                        Torch.mulInPlace(product, op.factor());
                        term = product;
                    }
                    if (rank == 0) {
                        Torch.copy(sum, term);
                    } else {
                        Reductions.combine(sum, term, op);
                    }
                }
            }
        }
    }

    /**
     * Accumulates where the result is to be. If that is some rank's part, the ranks before it are
     * accumulated in the first part, then that is combined with this one: the operators commute, so
     * the order of the ranks is kept.
     */
    private void accumulateInPlace(
            NDArray out, long result, long[] parts, long count, ScalarType type, ReduceOp op) {
        int own = 0;
        while (own < parts.length && parts[own] != result) {
            own++;
        }
        int next = 1;
        if (own == parts.length) {
            try (NDArray first = view(parts[0], count, type)) {
                Torch.copy(out, first);
            }
        } else if (own > 0) {
            try (NDArray first = view(parts[0], count, type)) {
                combineAll(first, parts, 1, own, count, type, op);
                Reductions.combine(out, first, op);
            }
            next = own + 1;
        }
        combineAll(out, parts, next, parts.length, count, type, op);
    }

    private void combineAll(
            NDArray sum, long[] parts, int from, int to, long count, ScalarType type, ReduceOp op) {
        for (int rank = from; rank < to; rank++) {
            try (NDArray part = view(parts[rank], count, type)) {
                Reductions.combine(sum, part, op);
            }
        }
    }

    private static void finish(NDArray sum, int worldSize, ReduceOp op) {
        if (op.kind() == ReduceOp.Kind.AVG) {
            Torch.divInPlace(sum, worldSize);
        }
    }

    private NDArray view(long address, long count, ScalarType type) {
        long bytes = count * type.itemSize();
        NativeMemory memory = new NativeMemory(address, bytes, Device.cpu(), () -> {});
        return Torch.view(manager, memory, 0, new Shape(count), type);
    }
}
