// SPDX-License-Identifier: Apache-2.0
/* Package-private, collectives:
 * OpQueue          runs operations in order, on the thread that waits or on its own
 * OpWork           one operation in the queue
 * HostTensors      the tensors of one operation
 * JavaSums         sums small contributions in Java
 * ViewCache        reusable arrays over addresses, for libtorch
 *
 * Package-private, messages:
 * MessageQueue     the running messages of one rank
 * MessageDriver    decides which thread makes progress on messages
 * MessagePump      moves messages between two ranks
 * MessageMatcher   matches messages with receives
 * MessageFailures  decides when a message fails
 *
 * Package-private, both:
 * PendingWork      completion of operations and messages
 */
/**
 * The common part of backends on CPUs: {@link CpuBackend} handles tensors, reductions, the order of
 * operations, and the protocol of messages. A backend adds a transport of three classes: a {@link
 * PeerStates}, a {@link HostCollectives} and a {@link MessageChannel}. Backends {@code shm} and
 * {@code mpi} are built this way.
 *
 * <ul>
 *   <li>{@link CpuBackend} - base class of the backends; opens tensors and submits operations
 *   <li>{@link PeerStates} - whether a group can run operations, and which ranks have left or died
 *   <li>{@link HostCollectives} - collectives of a transport
 *   <li>{@link HostTensor} - a tensor's memory while an operation runs
 *   <li>{@link Reducer} - reduces contributions with libtorch
 *   <li>{@link MessageChannel} - messages of a transport, to and from one peer
 *   <li>{@link Transfer} - one message at one of its ends
 *   <li>{@link Letter} - a control message: offers, accepts, rejects or withdraws a message
 * </ul>
 */
package org.djlx.collectives.spi.cpu;
