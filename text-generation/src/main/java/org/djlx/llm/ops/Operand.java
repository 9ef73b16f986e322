// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The input of a projection: contiguous rows, (rows, inputs), in the model's type or in e4m3.
 *
 * @param scales of rows in e4m3: float32, (rows, 1); otherwise null
 */
record Operand(NDArray elements, NDArray scales) {

    Operand(NDArray elements) {
        this(elements, null);
    }

    static Operand allocateE4m3(NDManager manager, Shape shape) {
        return new Operand(
                Torch.empty(manager, shape, ScalarType.FLOAT8_E4M3FN),
                Torch.empty(manager, new Shape(shape.get(0), 1), ScalarType.FLOAT32));
    }

    boolean isE4m3() {
        return scales != null;
    }

    /** Returns the rows as kernels take them, if they are in e4m3. */
    QuantizeKernels.Matrix matrix() {
        return new QuantizeKernels.Matrix(
                8,
                Torch.dataPointer(elements),
                Torch.dataPointer(scales),
                elements.getShape().get(0),
                elements.getShape().get(1));
    }

    void attach(NDManager manager) {
        elements.attach(manager);
        if (scales != null) {
            scales.attach(manager);
        }
    }
}
