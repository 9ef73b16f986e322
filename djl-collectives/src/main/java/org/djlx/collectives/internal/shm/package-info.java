/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * Copies           copies bytes, and counts them
 * HostTensor       a tensor's elements, held until then
 * HostTensors      the tensors of one operation
 * JavaSums         the same, where it is little
 * Mailbox          what goes from one rank to another, in shared memory
 * MessageDriver    which thread does all that
 * MessageFailures  when a message has failed, and why
 * MessageMatcher   which message a receive gets
 * MessagePump      moves messages between two ranks
 * MessageQueue     the messages under way, all at the same time
 * OpQueue          runs operations one after the other, on whatever thread waits for them
 * OpWork           one of them
 * PendingWork      how operations and messages end
 * Reducer          adds up what the ranks have staged, by libtorch
 * ShmBackend       one rank: opens tensors, and hands operations and messages to their queues
 * ShmMoves         those that move data
 * ShmP2pBuffers    the part of it that is the caller's
 * ShmReductions    those that reduce
 * ShmSegment       the shared memory, and what lies where in it
 * Steps            their way through the staging memory
 * TagQueues        queues by tag
 * Transfer         one of them
 * ViewCache        arrays over addresses, for libtorch
 */
/**
 * Backend {@code shm}: collectives and messages over memory that threads or processes of one host
 * share.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.shm.ShmBackendFactory} - how the backend is found
 * </ul>
 */
package org.djlx.collectives.internal.shm;
