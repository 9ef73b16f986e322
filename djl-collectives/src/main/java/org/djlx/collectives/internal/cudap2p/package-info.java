/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * AllReduceKernels  launches the kernels of all-reduces
 * CapturedWork      an operation that went into a graph
 * CudaP2pBackend    sends each operation to NCCL or to P2p
 * CudaP2pBuffers    the group's P2P buffers
 * CudaP2pStream     a stream that puts, signals and waits
 * P2p               all that the group has besides NCCL
 * P2pLinks          between which ranks it is shared
 * P2pQueue          runs operations on the callers' streams, and ends what waits for ranks
 * P2pRegion         that of all ranks, as this rank addresses it
 * RegionHandshake   how the ranks make it when a group is created
 * RegionLayout      what is where in it
 * RetiredRegions    what destroyed groups have left and others may still write into
 * SignalKernels     launches kernels in which streams enter operations, and use signals
 * StreamWork        an operation there
 * WaitStatus        words by which the host ends waits, and learns who did not come
 */
/**
 * Backend {@code cuda_p2p}: NCCL, and beside it memory of each GPU that the GPUs of all ranks write
 * into. Hosts do not wait for each other: what is called is published, enqueued, and compared
 * behind.
 *
 * <p>A group has one stream for its collectives, that of {@code nccl}: there a kernel that reduces
 * takes its turn among those of NCCL. Operators, whose code computes as well, and all-reduces that
 * callers wait for run on the callers' current streams: each waits for what the group's stream has
 * been given before, and the group's stream for it. Messages have streams of their own, which wait
 * for neither. What goes into a graph stays on the stream that is recorded.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.cudap2p.CudaP2pBackendFactory} - the way in
 * </ul>
 */
package org.djlx.collectives.internal.cudap2p;
