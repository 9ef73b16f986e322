// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Nccl             binds NCCL's functions
 * NcclWindowCalls  binds the functions for symmetric memory, from NCCL 2.27 on
 */
/**
 * NCCL: communicators, grouped calls and symmetric memory. Start with {@link
 * org.djlx.nativeops.nccl.NcclCommunicator}.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.nccl.NcclCommunicator} - one rank of a communicator
 *   <li>{@link org.djlx.nativeops.nccl.NcclConfig} - the configuration of a communicator
 *   <li>{@link org.djlx.nativeops.nccl.NcclException} - a failed call
 *   <li>{@link org.djlx.nativeops.nccl.NcclGroup} - calls that NCCL starts together
 *   <li>{@link org.djlx.nativeops.nccl.NcclWindow} - symmetric memory
 * </ul>
 */
package org.djlx.nativeops.nccl;
