// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.List;
import org.djlx.fusedops.kernel.Product.Scales;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The arrays of a call of a fused operator.
 *
 * @param arrays the arrays, A first
 * @param scales the scale of each float8 array, A first; empty for other types
 */
public record Operands(List<NDArray> arrays, TensorInfo[] infos, List<NDArray> scales) {

    public Operands(List<NDArray> arrays, TensorInfo[] infos) {
        this(arrays, infos, List.of());
    }

    /** Returns A and the Bs, or their scales. */
    public static List<NDArray> of(NDArray a, List<NDArray> bs) {
        List<NDArray> all = new ArrayList<>(1 + bs.size());
        all.add(a);
        all.addAll(bs);
        return all;
    }

    /** Returns the operands with scales for the rows of the gathered A. */
    Operands withRowScales(NDArray ofRows) {
        List<NDArray> all = new ArrayList<>(scales);
        all.set(0, ofRows);
        return new Operands(arrays, infos, all);
    }

    public boolean isScaledByRow() {
        return !scales.isEmpty() && scales.get(0).getShape().dimension() > 1;
    }

    /** Returns the scales of A and of a B; null if the operands are not scaled. */
    public Scales scales(int b) {
        if (scales.isEmpty()) {
            return null;
        }
        NDArray ofA = scales.get(0);
        return new Scales(
                Torch.dataPointer(ofA), Torch.dataPointer(scales.get(1 + b)), isScaledByRow());
    }

    public NDArray array(int index) {
        return arrays.get(index);
    }

    public long address(int index) {
        return infos[index].address();
    }
}
