// SPDX-License-Identifier: Apache-2.0
/**
 * Streams, watchdog and failure handling of the GPU backends. {@code NcclBackend} and {@code P2p}
 * use this package and do not call each other; {@code CudaP2pBackend} calls both.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.gpu.GpuGroup} - one rank's group: its queues, watchdog
 *       and failure handling
 *   <li>{@link org.djlx.collectives.internal.gpu.GroupExtension} - runs operations of a group on
 *       the callers' streams
 *   <li>{@link org.djlx.collectives.internal.gpu.StreamQueue} - a stream on which operations run in
 *       the order of the calls
 *   <li>{@link org.djlx.collectives.internal.gpu.Connection} - the link of a queue to other ranks
 *   <li>{@link org.djlx.collectives.internal.gpu.GpuCall} - the GPU part of an operation
 *   <li>{@link org.djlx.collectives.internal.gpu.DeviceTensor} - a tensor's elements, kept until
 *       the operation has ended
 *   <li>{@link org.djlx.collectives.internal.gpu.GpuWork} - an operation that ends with an event
 *   <li>{@link org.djlx.collectives.internal.gpu.QueuedWork} - an operation on a queue
 *   <li>{@link org.djlx.collectives.internal.gpu.Batch} - operations that are launched together
 *   <li>{@link org.djlx.collectives.internal.gpu.Watchdog} - completes works, and fails those that
 *       are late or cannot succeed
 *   <li>{@link org.djlx.collectives.internal.gpu.GpuResources} - the device, events and memory
 *       manager of a rank
 *   <li>{@link org.djlx.collectives.internal.gpu.EventPool} - reused events
 *   <li>{@link org.djlx.collectives.internal.gpu.GpuTurns} - orders kernels of several groups that
 *       fill a GPU
 *   <li>{@link org.djlx.collectives.internal.gpu.GpuLease} - reserves a GPU for the P2P groups of
 *       one job
 *   <li>{@link org.djlx.collectives.internal.gpu.BoundedCall} - a call that may wait for other
 *       ranks or GPUs, with a timeout
 *   <li>{@link org.djlx.collectives.internal.gpu.Disposal} - frees resources of destroyed groups in
 *       the background
 * </ul>
 */
package org.djlx.collectives.internal.gpu;
