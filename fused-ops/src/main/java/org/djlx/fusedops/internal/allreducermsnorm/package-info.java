// SPDX-License-Identifier: Apache-2.0
/**
 * All-reduce + RMSNorm: {@link org.djlx.fusedops.FusedOps#allReduceRmsNorm}. The launcher of its
 * kernels is {@link org.djlx.fusedops.kernel.RmsNormKernels}.
 *
 * <ul>
 *   <li>{@link AllReduceRmsNormPlan} - checks and runs calls; the plan with its three paths
 * </ul>
 */
package org.djlx.fusedops.internal.allreducermsnorm;
