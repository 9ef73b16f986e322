// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.fusedops.internal.QuantizeKernels;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Rows that a projection multiplies by its weights.
 *
 * @param elements (rows, inputs), contiguous: of the model's type, or e4m3 in bytes
 * @param scales in float32, a scale for each row in e4m3; null if rows are of the model's type
 */
record Operand(NDArray elements, NDArray scales) implements AutoCloseable {

    /** Makes an operand of rows of the model's type. */
    Operand(NDArray elements) {
        this(elements, null);
    }

    /** Allocates rows in e4m3, to be filled. */
    static Operand rounded(NDManager manager, Shape shape) {
        return new Operand(
                Torch.empty(manager, shape, ScalarType.UINT8),
                Torch.empty(manager, new Shape(shape.get(0)), ScalarType.FLOAT32));
    }

    boolean isRounded() {
        return scales != null;
    }

    /** Returns rows in e4m3 as kernels take them. */
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

    @Override
    public void close() {
        elements.close();
        if (scales != null) {
            scales.close();
        }
    }
}
