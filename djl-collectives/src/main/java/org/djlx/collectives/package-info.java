// SPDX-License-Identifier: Apache-2.0
/**
 * Process groups over NDArrays with pluggable backends: the counterpart of {@code
 * torch.distributed}. Start with {@link ProcessGroups}.
 *
 * <p>All packages of djl-collectives are public API, except those below {@code internal}, which may
 * change at any time.
 *
 * <p>Groups and operations:
 *
 * <ul>
 *   <li>{@link ProcessGroups} - creates groups, of processes or of threads of one JVM
 *   <li>{@link ProcessGroup} - one rank's handle on a group; has the collectives
 *   <li>{@link DeviceMesh} - ranks as a grid, with a sub-group along each dimension
 *   <li>{@link Work} - a running operation
 *   <li>{@link ReduceOp} - a reduction, such as SUM
 *   <li>{@link P2pOp} - a send or receive in a batch
 *   <li>{@link ObjectCollectives} - collectives on Java objects
 *   <li>{@link Agreement} - makes all ranks fail if one fails
 * </ul>
 *
 * <p>Options and settings:
 *
 * <ul>
 *   <li>{@link ShmOptions} - options of backend {@code shm} (CPU)
 *   <li>{@link DebugLevel} - how closely groups watch calls: {@code TORCH_DISTRIBUTED_DEBUG}
 *   <li>{@link NcclOptions} - options of backend {@code nccl} (GPU)
 *   <li>{@link CudaP2pOptions} - options of backend {@code cuda_p2p} (GPU)
 *   <li>{@link NcclBatch} - issues operations as one NCCL group call
 * </ul>
 *
 * <p>Exceptions:
 *
 * <ul>
 *   <li>{@link CollectiveException} - an operation failed
 *   <li>{@link CollectiveMismatchException} - the calls of the ranks do not match
 *   <li>{@link CollectiveTimeoutException} - ranks did not arrive in time
 * </ul>
 */
package org.djlx.collectives;
