/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * Boundary    one call of an operator, where autograd's graph is cut
 * Conversion  the way back from an array of another element type
 */
/**
 * Gradients through what groups compute, which libtorch's autograd does not see.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.gradient.DifferentiableCollectives} - collectives through which
 *       gradients flow
 *   <li>{@link org.djlx.collectives.gradient.GradientRule} - differentiates an operator of your own
 *   <li>{@link org.djlx.collectives.gradient.GradientScope} - collects gradients on one thread:
 *       DJL's GradientCollector for ranks
 * </ul>
 */
package org.djlx.collectives.gradient;
