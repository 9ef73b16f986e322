// SPDX-License-Identifier: Apache-2.0
/**
 * Process groups over NDArrays with pluggable backends: the counterpart of {@code
 * torch.distributed}. Start with {@link org.djlx.collectives.ProcessGroups}.
 *
 * <p>All packages of djl-collectives are public API, except those below {@code internal}, which may
 * change at any time.
 *
 * <p>Groups and operations:
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.ProcessGroups} - creates groups, of processes or of threads of
 *       one JVM
 *   <li>{@link org.djlx.collectives.ProcessGroup} - one rank's handle on a group; has the
 *       collectives
 *   <li>{@link org.djlx.collectives.DeviceMesh} - ranks as a grid, with a sub-group along each
 *       dimension
 *   <li>{@link org.djlx.collectives.Work} - a running operation
 *   <li>{@link org.djlx.collectives.ReduceOp} - a reduction, such as SUM
 *   <li>{@link org.djlx.collectives.P2pOp} - a send or receive in a batch
 *   <li>{@link org.djlx.collectives.ObjectCollectives} - collectives on Java objects
 *   <li>{@link org.djlx.collectives.Agreement} - makes all ranks fail if one fails
 * </ul>
 *
 * <p>Options and settings:
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.ShmOptions} - options of backend {@code shm} (CPU)
 *   <li>{@link org.djlx.collectives.NcclOptions} - options of backend {@code nccl} (GPU)
 *   <li>{@link org.djlx.collectives.CudaP2pOptions} - options of backend {@code cuda_p2p} (GPU)
 *   <li>{@link org.djlx.collectives.NcclBatch} - issues operations as one NCCL group call
 * </ul>
 *
 * <p>Exceptions:
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.CollectiveException} - an operation failed
 *   <li>{@link org.djlx.collectives.CollectiveMismatchException} - the calls of the ranks do not
 *       match
 *   <li>{@link org.djlx.collectives.CollectiveTimeoutException} - ranks did not arrive in time
 * </ul>
 */
package org.djlx.collectives;
