// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The input of a projection: rows in the model's type, or in e4m3 with a scale for each row.
 *
 * @param elements (rows, inputs), contiguous: of the model's type, or e4m3 in bytes; owned
 * @param scales (rows) in float32; null for rows in the model's type; owned
 */
record Operand(NDArray elements, NDArray scales) implements AutoCloseable {

    /** Wraps rows in the model's type. */
    Operand(NDArray elements) {
        this(elements, null);
    }

    /** Allocates rows in e4m3, to be filled. */
    static Operand allocateE4m3(NDManager manager, Shape shape) {
        return new Operand(
                Torch.empty(manager, shape, ScalarType.UINT8),
                Torch.empty(manager, new Shape(shape.get(0)), ScalarType.FLOAT32));
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

    /** Moves the arrays to a manager. */
    void attach(NDManager manager) {
        elements.attach(manager);
        if (scales != null) {
            scales.attach(manager);
        }
    }

    @Override
    public void close() {
        elements.close();
        if (scales != null) {
            scales.close();
        }
    }
}
