/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * CoalescedWork     its work
 * Coalescing        a collective on several tensors
 * GroupState        what all handles on a group share on one rank
 * HostWait          waits on the host
 * JobId             tells jobs apart whose groups have the same names
 * MonitoredBarrier  a barrier that says who is missing
 * ObjectCodec       objects as bytes
 * OperationChecks   checks arguments before anything is sent
 * RankThreads       threads that are the ranks of a group
 */
/**
 * Process groups over NDArrays with pluggable backends: the counterpart of {@code
 * torch.distributed}. Start with {@link org.djlx.collectives.ProcessGroups}.
 *
 * <p>The rooms {@code spi}, {@code store}, {@code p2p} and {@code pool} belong to this public API;
 * packages below {@code internal} may change at any time.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.CollectiveException} - an operation failed
 *   <li>{@link org.djlx.collectives.CollectiveMismatchException} - because ranks called different
 *       things
 *   <li>{@link org.djlx.collectives.CollectiveTimeoutException} - because ranks did not arrive in
 *       time
 *   <li>{@link org.djlx.collectives.CudaP2pOptions} - of that whose GPUs write into each other's
 *       memory
 *   <li>{@link org.djlx.collectives.Lifeline} - what keeps that from being closed
 *   <li>{@link org.djlx.collectives.NcclBatch} - calls of NCCL as one
 *   <li>{@link org.djlx.collectives.NcclOptions} - of that for GPUs by NCCL
 *   <li>{@link org.djlx.collectives.ObjectCollectives} - collectives on Java objects instead of
 *       tensors
 *   <li>{@link org.djlx.collectives.P2pOp} - a message of a batch
 *   <li>{@link org.djlx.collectives.ProcessGroup} - one rank's handle on a group, with the
 *       collectives
 *   <li>{@link org.djlx.collectives.ProcessGroups} - starts groups: from the environment, or for
 *       threads of this JVM
 *   <li>{@link org.djlx.collectives.ReduceOp} - how elements are reduced
 *   <li>{@link org.djlx.collectives.ShmOptions} - options of the backend for CPUs
 *   <li>{@link org.djlx.collectives.SubGroups} - creates groups of some ranks
 *   <li>{@link org.djlx.collectives.TorchThreads} - chooses libtorch's threads of a CPU rank
 *   <li>{@link org.djlx.collectives.Work} - what its operations return
 * </ul>
 */
package org.djlx.collectives;
