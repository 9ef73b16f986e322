// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

/**
 * A part of a parameter that a rank holds: elements in a row, or all of them.
 *
 * @param name the parameter's name in the block, the same in all JVMs
 * @param id the parameter's id in optimizers
 * @param shape that of the whole parameter
 * @param from the index of the part's first element in the parameter
 * @param isOwner whether this rank has the optimizer's state of the part
 * @param isSaved whether this rank writes the part to checkpoints
 */
public record ParameterShard(
        String name,
        String id,
        Shape shape,
        long from,
        NDArray array,
        boolean isOwner,
        boolean isSaved) {

    /** {@return whether the array is the whole parameter, in its shape} */
    public boolean isWhole() {
        return array.getShape().equals(shape);
    }
}
