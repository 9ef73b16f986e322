// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * NcclConnection - a communicator as the connection of a queue
 * Calls - operations as calls of NCCL
 * Messages - where the messages of a group run
 * PairMessages - a communicator and a queue for each peer and direction
 * GroupMessages - the group's communicator, and a stream for each peer
 * Verification - compares calls through the store before they run
 * DeviceChoice - the GPU of a rank
 */
/**
 * Backend {@code nccl}: collectives and messages between GPUs of one or several hosts. Streams,
 * watchdog and failure handling are those of {@link org.djlx.collectives.internal.gpu}.
 *
 * <ul>
 *   <li>{@link NcclBackendFactory} - creates backends
 *   <li>{@link NcclBackend} - the backend of one rank
 * </ul>
 */
package org.djlx.collectives.internal.nccl;
