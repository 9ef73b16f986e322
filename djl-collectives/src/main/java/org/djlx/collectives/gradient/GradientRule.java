/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.gradient;

import ai.djl.ndarray.NDArray;
import java.util.List;

/**
 * Differentiates an operator that autograd does not see. It is called with gradients off, on the
 * thread that called {@link GradientScope#backward}, once for each call of the operator and in the
 * reverse order of these, so on all ranks in the same order. It may use the operations of groups.
 *
 * @see GradientScope#record
 */
@FunctionalInterface
public interface GradientRule {

    /**
     * Returns the gradient of each input.
     *
     * @param inputs the operator's inputs, as they were recorded
     * @param kept what was to be kept for this
     * @param gradients the gradient of each output, of its shape and element type; zeros where the
     *     result does not depend on it. Not to be changed: others may share their memory
     * @return for each input its gradient, of its shape and element type; null for none. New
     *     arrays, or some of those passed, or views of either: gradients may stay in their memory.
     *     Arrays in the manager of those passed are closed afterwards
     */
    List<NDArray> differentiate(List<NDArray> inputs, List<NDArray> kept, List<NDArray> gradients);
}
