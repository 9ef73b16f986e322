// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * The arrays of a call of a fused operator.
 *
 * @param arrays the arrays, A first
 * @param infos the type, shape, strides and address of each array
 */
record Operands(List<NDArray> arrays, TensorInfo[] infos) {

    NDArray array(int index) {
        return arrays.get(index);
    }

    long address(int index) {
        return infos[index].address();
    }
}
