// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CudaP2pBackend - sends each operation to NCCL or to P2p
 * P2p - memory, kernels and queue of a rank
 * P2pParts - these parts while a group is created, and what its ranks agree on
 * P2pQueue - runs operations on the callers' streams, and publishes calls
 * StreamWork - an operation on a caller's stream
 * CapturedWork - an operation captured into a graph
 * GraphTurn - a rank's turn around each launch of a graph
 * P2pLinks - the pairs of ranks that share memory
 * P2pRegion - the memory of all ranks, as this rank addresses it
 * RegionLayout - the parts of a region
 * RegionHandshake - maps the regions when a group is created
 * PeerProbe - writes and checks probes in the memory of peers
 * RetiredRegions - regions of destroyed groups that peers may still write to
 * LateWriters - tensors of failed all-reduces that peers may still write to
 * CudaP2pBuffers - the group's P2P buffers
 * CudaP2pStream - a stream with put (a copy into a peer's buffer), signal and wait
 * SignalKernels - launches the kernels that signal and wait
 * WaitStatus - words by which the host ends waits of kernels, and kernels report missing ranks and refused splits
 * P2pCollectives - all-gather, reduce-scatter, all-to-all and broadcast
 * Exchange - these collectives on a stream: interface of the next two
 * ExchangeKernels - by kernels that write into peers' one-shot slots
 * CopyExchange - by copy engines, through the buffers
 * AllReduceKernels - launches the all-reduce kernels, which write into peers' areas or tensors
 * NcclLimit - measures from which size on NCCL is faster than these kernels
 */
/**
 * Backend {@code cuda_p2p}: NCCL, and next to it collectives and operators over peer-mapped memory.
 * Hosts do not wait for each other: a rank publishes a call and enqueues it, and the calls are
 * compared afterwards. Into a peer's buffer and heap a rank writes only after the peer has entered
 * the operation (docs/design/memory-and-signals.md, invariants 7 and 8); into its slots of the
 * one-shot kernels at once, because two halves take turns and the data is its own flag
 * (docs/design/all-reduce.md, invariants 1 and 2).
 *
 * <p>Streams:
 *
 * <ul>
 *   <li>A group has one stream for its collectives: NCCL's and the all-reduce kernels.
 *   <li>Operators, and all-reduces that callers wait for, run on the callers' current streams. The
 *       caller's stream waits for earlier operations on the group's stream; later operations on the
 *       group's stream wait for the caller's stream.
 *   <li>Messages have streams of their own, and wait for neither.
 *   <li>An operation captured into a graph stays on the stream that is being captured.
 * </ul>
 *
 * <p>Classes:
 *
 * <ul>
 *   <li>{@link CudaP2pBackendFactory} - creates backends
 * </ul>
 */
package org.djlx.collectives.internal.cudap2p;
