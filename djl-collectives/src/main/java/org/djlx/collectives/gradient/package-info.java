// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Boundary    one recorded call of an operator, where autograd's graph is cut
 * Conversion  adds the gradient of a converted array to those of its originals
 * KeptMemory  keeps JVM memory that autograd reads in the backward pass
 */
/**
 * Gradients through operations of groups, which libtorch's autograd does not see. Start with {@link
 * GradientScope}.
 *
 * <ul>
 *   <li>{@link DifferentiableCollectives} - collectives through which gradients flow
 *   <li>{@link GradientRule} - computes the gradients of an operator of your own
 *   <li>{@link GradientScope} - collects gradients on one thread: DJL's GradientCollector for ranks
 * </ul>
 */
package org.djlx.collectives.gradient;
