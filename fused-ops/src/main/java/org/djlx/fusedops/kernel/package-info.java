// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Libtorch  matmuls and reductions by libtorch
 */
/**
 * Matmuls and kernels on memory given by address, on one rank's device: for libraries that build
 * their own operators, as text generation does. They check no arguments. Others call {@link
 * org.djlx.fusedops.FusedOps}.
 *
 * <ul>
 *   <li>{@link Compute} - prepares matmuls and reductions on a group's device, and keeps launchers
 *       of kernels
 *   <li>{@link KernelLauncher} - launches the kernels of one CUDA source
 *   <li>{@link OneShotLaunch} - the kernel argument that describes a group's one-shot slots
 *   <li>{@link Product} - a prepared matmul
 *   <li>{@link RankOrderReducer} - kernel that sums the parts of all ranks in rank order
 *   <li>{@link RmsNormKernels} - all-reduce, residual and RMSNorm in one kernel; residual and
 *       RMSNorm alone
 * </ul>
 */
package org.djlx.fusedops.kernel;
