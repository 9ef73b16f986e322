/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.train;

import ai.djl.ndarray.NDArray;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** As what gradients go from rank to rank. */
public enum GradientCompression {
    /** As they are. */
    NONE,
    /**
     * Those of 4 or 8 bytes an element as bfloat16, as by PyTorch's {@code bf16_compress_hook}:
     * half the bytes or less. Each rank's gradient is rounded, to 8 bits of precision, and the
     * result again. Where NCCL reduces it may round in between too.
     */
    BFLOAT16;

    boolean shortens(ScalarType type) {
        return this == BFLOAT16 && type.isFloatingPoint() && type.itemSize() >= 4;
    }

    NDArray shorten(NDArray gradient) {
        return Torch.cast(gradient, ScalarType.BFLOAT16);
    }
}
