// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import ai.djl.ndarray.NDArray;
import java.util.List;

/**
 * Computes the gradients of an operator that autograd does not see. {@link GradientScope#backward}
 * calls it on its own thread with gradients off, once per call of the operator, in reverse order of
 * the calls. The order is the same on all ranks, so a rule may use operations of groups.
 *
 * @see GradientScope#record
 */
@FunctionalInterface
public interface GradientRule {

    /**
     * {@return the gradient of each input, of its shape and element type, or null for none} They
     * may be new arrays, passed arrays, or views of either; their memory may be kept as a gradient.
     * Arrays in the manager of the passed arrays are closed afterwards.
     *
     * @param gradients the gradient of each output, of its shape and element type; zeros if the
     *     target does not depend on the output. A rule must not change them: gradients may share
     *     memory
     */
    List<NDArray> differentiate(List<NDArray> inputs, List<NDArray> kept, List<NDArray> gradients);
}
