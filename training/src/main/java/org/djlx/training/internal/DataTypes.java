// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Element types that DJL's engine cannot name, such as bfloat16: it neither creates nor decodes
 * arrays of them, but ends the JVM.
 */
public final class DataTypes {

    private DataTypes() {}

    /**
     * Returns an array that DJL's formats can store: a float32 copy, which is exact, of a bfloat16
     * array; any other array itself.
     */
    public static NDArray storable(NDArray array) {
        if (Torch.scalarType(array) != ScalarType.BFLOAT16) {
            return array;
        }
        NDArray copy = NoGradient.get(() -> Torch.cast(array, ScalarType.FLOAT32));
        copy.setName(array.getName());
        return copy;
    }

    /** Throws an {@link IllegalArgumentException} if DJL cannot create parameters of a type. */
    public static void requireCreatable(String call, DataType type) {
        if (type == DataType.BFLOAT16 || type == DataType.UNKNOWN) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: DJL's engine PyTorch cannot create parameters of %s; initialise"
                                    + " the block in FLOAT32, and compute in bfloat16 by"
                                    + " optMixedPrecision or optComputeType",
                            call, type.name()));
        }
    }
}
