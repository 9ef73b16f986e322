// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Nccl             binds NCCL's functions
 * NcclWindowCalls  binds the functions for symmetric memory, from NCCL 2.27 on
 */
/**
 * NCCL: communicators, grouped calls and symmetric memory. Start with {@link NcclCommunicator}.
 *
 * <ul>
 *   <li>{@link NcclCommunicator} - one rank of a communicator
 *   <li>{@link NcclConfig} - the configuration of a communicator
 *   <li>{@link NcclException} - a failed call
 *   <li>{@link NcclGroup} - calls that NCCL starts together
 *   <li>{@link NcclWindow} - symmetric memory
 * </ul>
 */
package org.djlx.nativeops.nccl;
