// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import java.util.function.UnaryOperator;

/**
 * RMSNorm and gated activations by libtorch, on any device. 16-bit types are computed in float32
 * and rounded once. Autograd records both.
 */
public final class BlockMath {

    private BlockMath() {}

    private static boolean isNarrow(NDArray x) {
        return Torch.scalarType(x).itemSize() < Float.BYTES;
    }

    /**
     * {@return {@code x / sqrt(mean(x²) + epsilon) * weight}, with the mean over the last
     * dimension, for rows of shape (…, size) and a weight of shape (size), in the manager of {@code
     * x}}
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
     * {@return {@code silu(gate) * value}, for values of the gates' shape and type, in the manager
     * of the gates}
     */
    public static NDArray siluGate(NDArray gate, NDArray value) {
        return gate(gate, value, Torch::silu);
    }

    /** As {@link #siluGate}, with GELU in its approximation by tanh. */
    public static NDArray geluGate(NDArray gate, NDArray value) {
        return gate(gate, value, BlockMath::gelu);
    }

    /**
     * Computes {@code gate * sigmoid(1.702 gate) * (value + 1)}, with gates of at most 7 and values
     * from -7 to 7, as GPT-OSS.
     */
    public static NDArray clampedSiluGate(NDArray gate, NDArray value) {
        float steepness = 1.702f;
        try (NDArray wideGate = Torch.cast(gate, ScalarType.FLOAT32);
                NDArray wideValue = Torch.cast(value, ScalarType.FLOAT32);
                NDArray scaled = wideGate.minimum(7).muli(steepness);
                NDArray activated = Torch.silu(scaled);
                NDArray shifted = wideValue.clip(-7, 7).addi(1)) {
            return Torch.cast(activated.muli(shifted).divi(steepness), Torch.scalarType(gate));
        }
    }

    private static NDArray gate(NDArray gate, NDArray value, UnaryOperator<NDArray> activation) {
        if (isNarrow(gate)) {
            try (NDArray wideGate = Torch.cast(gate, ScalarType.FLOAT32);
                    NDArray wideValue = Torch.cast(value, ScalarType.FLOAT32);
                    NDArray product = gate(wideGate, wideValue, activation)) {
                return Torch.cast(product, Torch.scalarType(gate));
            }
        }
        try (NDArray activated = activation.apply(gate)) {
            return activated.mul(value);
        }
    }

    /**
     * Computes {@code x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2} (Hendrycks and Gimpel, 2016, <a
     * href="https://arxiv.org/abs/1606.08415">arXiv:1606.08415</a>).
     */
    public static NDArray gelu(NDArray x) {
        try (NDArray square = x.square();
                NDArray inner = square.mul(0.044715f).addi(1).muli(x);
                NDArray tanh = inner.mul((float) Math.sqrt(2 / Math.PI)).tanh()) {
            return tanh.addi(1).muli(0.5f).mul(x);
        }
    }

    /**
     * {@return float32 values limited to {@code cap * tanh(x / cap)}, or {@code x} if the cap is 0}
     */
    public static NDArray cap(NDArray x, double cap) {
        if (cap == 0) {
            return x;
        }
        try (NDArray quotient = x.div((float) cap)) {
            return quotient.tanh().muli((float) cap);
        }
    }
}
