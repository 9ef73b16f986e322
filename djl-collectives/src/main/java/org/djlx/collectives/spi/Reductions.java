/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.spi;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * Reduces what all ranks have contributed, in rank order, with libtorch's vectorised operators.
 * 16-bit floating-point types are accumulated in float32 and rounded once, other types in their own
 * precision; so the result has the same bits whichever rank computes it.
 */
public final class Reductions {

    private Reductions() {}

    /**
     * Reduces; not for {@link ReduceOp.Kind#PREMUL_SUM}.
     *
     * @param result where the result goes; shares no memory with any of the parts but, at most, is
     *     the first
     * @param parts what the ranks contributed, in rank order; all of the result's shape and type
     * @param op how to reduce
     */
    public static void reduce(NDArray result, List<NDArray> parts, ReduceOp op) {
        Required.argument("reduce: parts", parts);
        Required.argument("reduce: op", op);
        boolean widen = Torch.scalarType(result).isReducedFloatingPoint();
        NDArray sum =
                widen
                        ? Torch.empty(result.getManager(), result.getShape(), ScalarType.FLOAT32)
                        : result;
        try {
            Torch.copy(sum, parts.get(0));
            for (NDArray part : parts.subList(1, parts.size())) {
                combine(sum, part, op);
            }
            if (op == ReduceOp.AVG) {
                TorchInPlace.div(sum, parts.size());
            }
            if (widen) {
                Torch.copy(result, sum);
            }
        } finally {
            if (widen) {
                sum.close();
            }
        }
    }

    /**
     * Adds one rank's contribution to what was accumulated so far.
     *
     * @param sum what was accumulated, replaced by the result
     * @param part the contribution, of the same shape; for {@link ReduceOp.Kind#PREMUL_SUM} already
     *     multiplied with the factor
     * @param op how to reduce
     */
    public static void combine(NDArray sum, NDArray part, ReduceOp op) {
        switch (Required.argument("combine: op", op).kind()) {
            case SUM:
            case AVG:
            case PREMUL_SUM:
                TorchInPlace.add(sum, part);
                break;
            case PRODUCT:
                TorchInPlace.mul(sum, part);
                break;
            case MIN:
                TorchInPlace.min(sum, part);
                break;
            case MAX:
                TorchInPlace.max(sum, part);
                break;
            case BAND:
                TorchInPlace.bitAnd(sum, part);
                break;
            case BOR:
                TorchInPlace.bitOr(sum, part);
                break;
            case BXOR:
                TorchInPlace.bitXor(sum, part);
                break;
            default:
                throw new AssertionError(op);
        }
    }
}
