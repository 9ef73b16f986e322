// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * HostSplits   splits of all ranks, checked on the host, and the chunks of this rank
 * VdevKernels  launches the kernels: all-to-all with splits in GPU memory
 */
/**
 * All-to-all with splits on the device: {@link org.djlx.fusedops.VariableAllToAll}.
 *
 * <ul>
 *   <li>{@link DeviceAllToAll} - checks and runs a call, by one kernel or by the host
 * </ul>
 */
package org.djlx.fusedops.internal.alltoall;
