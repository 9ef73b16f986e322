// SPDX-License-Identifier: Apache-2.0
/* Package-private, collectives:
 * OpWork           one operation in the queue
 * HostTensors      the tensors of one operation
 * JavaSums         sums small contributions in Java
 * ViewCache        reusable arrays over addresses, for libtorch
 *
 * Package-private, messages:
 * MessageDriver    decides which thread makes progress on messages
 * MessagePump      moves messages between two ranks
 * MessageMatcher   matches messages with receives
 */
/**
 * What backends on CPUs share, whatever their transport: tensors, reductions, the order of
 * operations, and the protocol of messages.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.cpu.CpuBackend} - base class of the backends; opens
 *       tensors and submits operations
 *   <li>{@link org.djlx.collectives.internal.cpu.HostCollectives} - collectives of a transport
 *   <li>{@link org.djlx.collectives.internal.cpu.OpQueue} - runs operations in order, on the thread
 *       that waits or on its own
 *   <li>{@link org.djlx.collectives.internal.cpu.HostTensor} - a tensor's memory while an operation
 *       runs
 *   <li>{@link org.djlx.collectives.internal.cpu.Reducer} - reduces contributions with libtorch
 *   <li>{@link org.djlx.collectives.internal.cpu.MessageQueue} - the running messages of one rank
 *   <li>{@link org.djlx.collectives.internal.cpu.MessageChannel} - messages of a transport, to and
 *       from one peer
 *   <li>{@link org.djlx.collectives.internal.cpu.MessageFailures} - decides when a message fails
 *   <li>{@link org.djlx.collectives.internal.cpu.Transfer} - one message at one of its ends
 *   <li>{@link org.djlx.collectives.internal.cpu.Letter} - what two ranks write each other about a
 *       message
 *   <li>{@link org.djlx.collectives.internal.cpu.PendingWork} - completion of operations and
 *       messages
 * </ul>
 */
package org.djlx.collectives.internal.cpu;
