// SPDX-License-Identifier: Apache-2.0
/* Package-private, collectives:
 * ShmBackend       the backend of one rank
 * ShmSegment       layout of the shared memory
 * ShmCollectives   the collectives of one rank: here those that reduce
 * Steps            steps of an operation over the staging memory
 * ShmMoves         their base: collectives that move data
 * Copies           copies and counts bytes
 * ShmP2pBuffers    P2P buffers in the shared memory
 *
 * Package-private, messages:
 * ShmChannel       letters and data to and from one peer
 * Mailbox          letters and data from one rank to another, in shared memory
 */
/**
 * Backend {@code shm}: collectives and messages over shared memory, for ranks that are threads or
 * processes on one host.
 *
 * <ul>
 *   <li>{@link ShmBackendFactory} - creates the backend
 * </ul>
 */
package org.djlx.collectives.internal.shm;
