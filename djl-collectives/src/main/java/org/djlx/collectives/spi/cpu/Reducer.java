// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Reductions;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * Reduces the contributions of all ranks, in rank order, with libtorch's vectorised operators on
 * views of memory, or with {@link Sums} where those are faster. 16-bit floating-point types are
 * accumulated in float32 and rounded once. Complex numbers are reduced as pairs of reals.
 *
 * <p>The result has the same bits on every rank, with one exception. If the result overwrites a
 * part, two operands may be swapped: MIN and MAX may then return another zero (+0 or -0), and every
 * operator another NaN.
 */
public final class Reducer implements AutoCloseable {

    /** Sums contributions in rank order, to the same bits as libtorch and faster. */
    public interface Sums {

        /** Returns whether {@link #add} supports a sum. */
        boolean canAdd(long count, ScalarType type);

        /**
         * Sums contributions in rank order, as {@link Reducer#reduce}; the result may be one of
         * them.
         */
        void add(long result, long[] parts, long count, ScalarType type);
    }

    private final NDManager manager;
    private final NDManager kept;
    private final ViewCache views;
    private final Sums sums;

    /** Creates a reducer, whose temporary arrays the manager owns, with a way to sum. */
    Reducer(NDManager manager, Sums sums) {
        this.manager = manager;
        this.sums = sums;
        kept = NDManager.newBaseManager(Device.cpu(), "PyTorch");
        views = new ViewCache(kept);
    }

    /**
     * Reduces contributions at addresses in rank order. The result may be the address of one of
     * them; then the first may be overwritten as well.
     */
    public void reduce(long result, long[] parts, long count, ScalarType type, ReduceOp op) {
        ScalarType real = type.real();
        reduceReals(result, parts, count * type.itemSize() / real.itemSize(), real, op);
    }

    private void reduceReals(long result, long[] parts, long count, ScalarType type, ReduceOp op) {
        if (count == 0) {
            return;
        }
        if (op.kind() == ReduceOp.Kind.SUM && sums.canAdd(count, type)) {
            sums.add(result, parts, count, type);
            return;
        }
        // As NoGradient.run, without allocating a lambda per chunk.
        boolean gradients = JniUtils.isGradMode();
        JniUtils.setGradMode(false);
        try {
            reduceByTorch(result, parts, count, type, op);
        } finally {
            JniUtils.setGradMode(gradients);
        }
    }

    private void reduceByTorch(
            long result, long[] parts, long count, ScalarType type, ReduceOp op) {
        boolean scaled = op.kind() == ReduceOp.Kind.PREMUL_SUM;
        if (type.isReducedFloatingPoint() || scaled) {
            ScalarType wide = type == ScalarType.FLOAT64 ? type : ScalarType.FLOAT32;
            try (NDArray sum = Torch.empty(manager, new Shape(count), wide)) {
                accumulate(sum, parts, count, type, op);
                finish(sum, parts.length, op);
                Torch.copy(views.get(result, count, type), sum);
            }
        } else {
            NDArray out = views.get(result, count, type);
            accumulateInPlace(out, result, parts, count, type, op);
            finish(out, parts.length, op);
        }
    }

    /** Accumulates into a separate array; the parts do not change. */
    private void accumulate(NDArray sum, long[] parts, long count, ScalarType type, ReduceOp op) {
        boolean scaled = op.kind() == ReduceOp.Kind.PREMUL_SUM;
        try (NDArray product =
                Torch.empty(manager, new Shape(scaled ? count : 0), Torch.scalarType(sum))) {
            for (int rank = 0; rank < parts.length; rank++) {
                NDArray term = views.get(parts[rank], count, type);
                if (scaled) {
                    Torch.copy(product, term);
                    TorchInPlace.mul(product, op.factor());
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

    /**
     * Accumulates into the result. If the result is a rank's part, the parts of lower ranks are
     * accumulated into the first part. The first part is then combined with the result. The
     * operators commute, except for zeros and NaNs, so this keeps the rank order.
     */
    private void accumulateInPlace(
            NDArray out, long result, long[] parts, long count, ScalarType type, ReduceOp op) {
        int own = 0;
        while (own < parts.length && parts[own] != result) {
            own++;
        }
        int next = 1;
        if (own == parts.length) {
            Torch.copy(out, views.get(parts[0], count, type));
        } else if (own > 0) {
            NDArray first = views.get(parts[0], count, type);
            combineAll(first, parts, 1, own, count, type, op);
            Reductions.combine(out, first, op);
            next = own + 1;
        }
        combineAll(out, parts, next, parts.length, count, type, op);
    }

    private void combineAll(
            NDArray sum, long[] parts, int from, int to, long count, ScalarType type, ReduceOp op) {
        for (int rank = from; rank < to; rank++) {
            Reductions.combine(sum, views.get(parts[rank], count, type), op);
        }
    }

    private static void finish(NDArray sum, int worldSize, ReduceOp op) {
        if (op.kind() == ReduceOp.Kind.AVG) {
            TorchInPlace.div(sum, worldSize);
        }
    }

    @Override
    public void close() {
        kept.close();
    }
}
