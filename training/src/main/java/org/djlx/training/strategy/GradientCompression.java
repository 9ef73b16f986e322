// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** The format in which gradients are sent between ranks. */
public enum GradientCompression {
    /** The gradient's own type. */
    NONE,
    /**
     * float32 and float64 gradients are sent as bfloat16, as by PyTorch's {@code
     * bf16_compress_hook}. Each rank's gradient is rounded to 8 bits of precision, and so is the
     * result; NCCL may round partial sums too.
     */
    BFLOAT16;

    boolean shortens(ScalarType type) {
        return this == BFLOAT16 && type.isFloatingPoint() && type.itemSize() >= 4;
    }

    NDArray shorten(NDArray gradient) {
        return Torch.cast(gradient, ScalarType.BFLOAT16);
    }
}
