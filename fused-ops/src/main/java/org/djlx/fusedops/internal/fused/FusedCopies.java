// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.fused;

import ai.djl.ndarray.NDArray;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;

/** Copies operands to layouts that {@link FusedMatmul} loads. */
public final class FusedCopies {

    private FusedCopies() {}

    /** Copies a matrix to rows of the whole units that the kernel loads. */
    public static NDArray padded(OperationScope scope, NDArray matrix, ScalarType type) {
        NDArray wide = scope.empty(FusedMatmul.copyShape(matrix.getShape()), type);
        FusedMatmul.copy(wide, matrix, type);
        return wide;
    }

    public static NDArray copyOfB(OperationScope scope, NDArray b, ScalarType type) {
        if (type != ScalarType.FLOAT8_E4M3FN) {
            return scope.copy(b, type);
        }
        NDArray view = scope.alias(b);
        return padded(scope, NoGradient.get(() -> scope.add(view.transpose())), type);
    }
}
