// SPDX-License-Identifier: Apache-2.0
/**
 * Streams, watchdog and failure handling of the GPU backends. {@code NcclBackend} and {@code P2p}
 * use this package and do not call each other; {@code CudaP2pBackend} calls both.
 *
 * <ul>
 *   <li>{@link GpuGroup} - one rank's group: its queues, watchdog and failure handling
 *   <li>{@link GroupExtension} - runs operations of a group on the callers' streams
 *   <li>{@link StreamQueue} - a stream on which operations run in the order of the calls
 *   <li>{@link Lane} - a stream of a queue, watched for itself
 *   <li>{@link SideStream} - a further stream of a queue, of the messages with a peer
 *   <li>{@link Connection} - the link of a queue to other ranks
 *   <li>{@link GpuCall} - the GPU part of an operation
 *   <li>{@link DeviceTensor} - a tensor's elements, kept until the operation has ended
 *   <li>{@link GpuWork} - an operation that ends with an event
 *   <li>{@link QueuedWork} - an operation on a queue
 *   <li>{@link Batch} - operations that are launched together
 *   <li>{@link Watchdog} - completes works, and fails those that are late or cannot succeed
 *   <li>{@link GpuResources} - the device, events and memory manager of a rank
 *   <li>{@link EventPool} - reused events
 *   <li>{@link GpuTurns} - orders kernels of several groups that fill a GPU
 *   <li>{@link GpuLease} - reserves a GPU for the P2P groups of one job
 *   <li>{@link BoundedCall} - a call that may wait for other ranks or GPUs, with a timeout
 *   <li>{@link Disposal} - frees resources of destroyed groups in the background
 * </ul>
 */
package org.djlx.collectives.internal.gpu;
