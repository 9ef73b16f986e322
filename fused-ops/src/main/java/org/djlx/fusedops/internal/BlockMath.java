// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * RMSNorm and gated SiLU by libtorch, on any device. 16-bit types are computed in float32 and
 * rounded once. Autograd records both.
 */
public final class BlockMath {

    private BlockMath() {}

    private static boolean isNarrow(NDArray x) {
        return Torch.scalarType(x).itemSize() < Float.BYTES;
    }

    /**
     * Computes {@code x / sqrt(mean(x²) + epsilon) * weight}, with the mean over the last
     * dimension.
     *
     * @param x rows, of shape (…, size)
     * @param weight the weight, of shape (size)
     * @param epsilon the number added to the mean
     * @return the norm, of the shape and type of {@code x} and in its manager
     */
    public static NDArray rmsNorm(NDArray x, NDArray weight, float epsilon) {
        if (isNarrow(x)) {
            try (NDArray wide = Torch.cast(x, ScalarType.FLOAT32);
                    NDArray norm = rmsNorm(wide, weight, epsilon)) {
                return Torch.cast(norm, Torch.scalarType(x));
            }
        }
        int[] last = {x.getShape().dimension() - 1};
        try (NDArray squares = x.square();
                NDArray mean = squares.mean(last, true);
                NDArray shifted = mean.add(epsilon);
                NDArray root = shifted.sqrt();
                NDArray quotient = x.div(root)) {
            return quotient.mul(weight);
        }
    }

    /**
     * Computes {@code silu(gate) * value}.
     *
     * @param value the values, of the same shape and type
     * @return the product, in the manager of the gates
     */
    public static NDArray siluGate(NDArray gate, NDArray value) {
        if (isNarrow(gate)) {
            try (NDArray wideGate = Torch.cast(gate, ScalarType.FLOAT32);
                    NDArray wideValue = Torch.cast(value, ScalarType.FLOAT32);
                    NDArray product = siluGate(wideGate, wideValue)) {
                return Torch.cast(product, Torch.scalarType(gate));
            }
        }
        try (NDArray activated = Torch.silu(gate)) {
            return activated.mul(value);
        }
    }
}
