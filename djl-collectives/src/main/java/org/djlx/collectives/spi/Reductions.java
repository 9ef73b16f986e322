// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * Reduces the contributions of all ranks on the CPU, in rank order, with libtorch's vectorised
 * operators. 16-bit floating-point types are accumulated in float32 and rounded once, other types
 * in their own precision. The result has the same bits on every rank.
 */
public final class Reductions {

    private Reductions() {}

    /**
     * Reduces contributions in rank order, of the result's shape and type. The result may be the
     * first of them, and shares no memory with the others. Does not support {@link
     * ReduceOp.Kind#PREMUL_SUM}.
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
     * Combines one rank's contribution with the accumulator.
     *
     * @param sum the accumulator, overwritten with the result
     * @param part the contribution, of the same shape; for {@link ReduceOp.Kind#PREMUL_SUM} already
     *     multiplied by the factor
     */
    public static void combine(NDArray sum, NDArray part, ReduceOp op) {
        switch (Required.argument("combine: op", op).kind()) {
            case SUM, AVG, PREMUL_SUM -> TorchInPlace.add(sum, part);
            case PRODUCT -> TorchInPlace.mul(sum, part);
            case MIN -> TorchInPlace.min(sum, part);
            case MAX -> TorchInPlace.max(sum, part);
            case BAND -> TorchInPlace.bitAnd(sum, part);
            case BOR -> TorchInPlace.bitOr(sum, part);
            case BXOR -> TorchInPlace.bitXor(sum, part);
        }
    }
}
