// SPDX-License-Identifier: Apache-2.0
/**
 * The path FUSED: a matmul and its collective as one kernel, on Hopper GPUs. The paths FusedGather
 * and FusedScatter of the operators launch it; {@link org.djlx.fusedops.cost.FusedMatmulModel}
 * predicts its time.
 *
 * <ul>
 *   <li>{@link FusedCopies} - copies operands to layouts that the kernel loads
 *   <li>{@link FusedMatmul} - launches the kernel
 * </ul>
 */
package org.djlx.fusedops.internal.fused;
