/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * Nccl             the functions
 * NcclWindowCalls  those for windows, which not every NCCL has
 */
/**
 * NCCL communicators, grouped calls and registered windows.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.nccl.NcclCommunicator} - one rank of a communicator
 *   <li>{@link org.djlx.nativeops.nccl.NcclConfig} - how it is to work
 *   <li>{@link org.djlx.nativeops.nccl.NcclException} - a call that failed
 *   <li>{@link org.djlx.nativeops.nccl.NcclGroup} - calls that start together
 *   <li>{@link org.djlx.nativeops.nccl.NcclWindow} - memory that all ranks know
 * </ul>
 */
package org.djlx.nativeops.nccl;
