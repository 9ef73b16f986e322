// SPDX-License-Identifier: Apache-2.0
/* Package-private, collectives:
 * ShmBackend       the backend of one rank; opens tensors and submits operations
 * ShmSegment       layout of the shared memory
 * OpQueue          runs operations in order, on the thread that waits or on its own
 * OpWork           one operation in the queue
 * Steps            steps of an operation over the staging memory
 * ShmMoves         collectives that move data
 * ShmReductions    collectives that reduce
 * Reducer          reduces contributions with libtorch
 * JavaSums         sums small contributions in Java
 * ViewCache        reusable arrays over addresses, for libtorch
 * Copies           copies and counts bytes
 * HostTensor       a tensor's memory while an operation runs
 * HostTensors      the tensors of one operation
 * ShmP2pBuffers    P2P buffers in the shared memory
 *
 * Package-private, messages:
 * MessageQueue     the running messages of one rank
 * MessageDriver    decides which thread makes progress on messages
 * MessagePump      moves messages between two ranks
 * MessageMatcher   matches messages with receives
 * MessageFailures  decides when a message fails
 * Mailbox          message headers and data from one rank to another, in shared memory
 * TagQueues        FIFO queues by tag
 * Transfer         one message at one of its ends
 *
 * Package-private, both:
 * PendingWork      completion of operations and messages
 */
/**
 * Backend {@code shm}: collectives and messages over shared memory, for ranks that are threads or
 * processes on one host.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.shm.ShmBackendFactory} - creates the backend
 * </ul>
 */
package org.djlx.collectives.internal.shm;
