// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.precision;

import org.djlx.nativeops.torch.ScalarType;

/**
 * The element type in which matrix products and convolutions are computed, as the {@code
 * param_dtype} of FSDP2's {@code MixedPrecisionPolicy}. Parameters, gradients, optimizer state and
 * all other operators, such as normalisation, softmax and losses, are float32.
 */
public enum MixedPrecisionPolicy {
    NONE(ScalarType.FLOAT32),
    /** Computes in bfloat16, which has float32's range. */
    BFLOAT16(ScalarType.BFLOAT16),
    /** Computes in float16, with a {@link GradScaler}: its range is 6e-8 to 65504. */
    FLOAT16(ScalarType.FLOAT16);

    private final ScalarType type;

    MixedPrecisionPolicy(ScalarType type) {
        this.type = type;
    }

    public ScalarType type() {
        return type;
    }
}
