// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CopyGather       path GATHERED on the CPU, and PIPELINED for small shards: all-gather by copies, one matmul
 * FusedGather      path FUSED: one kernel pushes, waits and multiplies
 * GatherLastDim    path PIPELINED along the last dimension: adds a product for each rank
 * KernelGather     path GATHERED on GPUs: all-gather by a kernel, one matmul
 * LibraryGather    common part of the paths whose products a library computes
 * NcclGather       path NCCL: all-gather of the group, one matmul
 * P2pGatherPath    common part of the paths over P2P buffers
 * PipelinedGather  path PIPELINED: matmuls of shards, overlapped with copies
 */
/**
 * All-gather + matmul: {@link org.djlx.fusedops.FusedOps#allGatherMatmul}.
 *
 * <ul>
 *   <li>{@link AllGatherMatmul} - the checked sizes of a call; runs it, and prepares its paths
 * </ul>
 */
package org.djlx.fusedops.internal.allgathermatmul;
