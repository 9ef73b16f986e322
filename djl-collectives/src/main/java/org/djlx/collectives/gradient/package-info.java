/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Gradients through what groups compute, which libtorch's autograd does not see.
 *
 * <pre>
 *   GradientScope               collects gradients on one thread: DJL's GradientCollector for ranks
 *   DifferentiableCollectives   collectives through which gradients flow
 *   GradientRule                differentiates an operator of your own
 *   Boundary                    one call of an operator, where autograd's graph is cut
 *   Conversion                  the way back from an array of another element type
 * </pre>
 */
package org.djlx.collectives.gradient;
