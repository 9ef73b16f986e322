/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * BoundedCall    a call that waits for other ranks, with a timeout
 * Call           what one does on the GPU
 * Calls          the operations in NCCL's terms
 * DeviceChoice   which GPU a rank has
 * DeviceTensor   a tensor's elements, held until the operation has ended
 * GpuResources   what the queues of a backend share
 * MessageQueues  those for messages, one for each peer and direction
 * NcclQueue      a communicator and its stream, also for kernels that need no NCCL
 * NcclWork       an operation on a queue
 * Peers          whether the processes of the other ranks still run
 * Verification   compares calls before they run, through the store
 */
/**
 * Backend {@code nccl}: collectives between GPUs of one or several hosts.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.nccl.Batch} - operations that NCCL starts together
 *   <li>{@link org.djlx.collectives.internal.nccl.NcclBackend} - collectives and messages, for one
 *       rank
 *   <li>{@link org.djlx.collectives.internal.nccl.NcclBackendFactory} - the way in
 * </ul>
 */
package org.djlx.collectives.internal.nccl;
