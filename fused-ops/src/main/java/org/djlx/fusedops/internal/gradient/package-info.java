// SPDX-License-Identifier: Apache-2.0
/**
 * Gradients of the operators within a {@link org.djlx.collectives.gradient.GradientScope}.
 *
 * <ul>
 *   <li>{@link FusedGradients} - records the operators, and computes their gradients
 *   <li>{@link ProductSums} - matmuls of 16-bit matrices that add to float32 matrices
 * </ul>
 */
package org.djlx.fusedops.internal.gradient;
