/**
 * Backend {@code nccl}: collectives between GPUs of one or several hosts.
 *
 * <pre>
 *   NcclBackendFactory  the way in
 *   NcclBackend         collectives and messages, for one rank
 *   Calls               the operations in NCCL's terms
 *   Call                what one does on the GPU
 *   DeviceTensor        a tensor's elements, held until the operation has ended
 *   NcclQueue           a communicator and its stream, also for kernels that need no NCCL
 *   MessageQueues       those for messages, one for each peer and direction
 *   NcclWork            an operation on a queue
 *   Batch               operations that NCCL starts together
 *   Verification        compares calls before they run, through the store
 *   Peers               whether the processes of the other ranks still run
 *   BoundedCall         a call that waits for other ranks, with a timeout
 *   DeviceChoice        which GPU a rank has
 *   GpuResources        what the queues of a backend share
 * </pre>
 */
package org.djlx.collectives.internal.nccl;
