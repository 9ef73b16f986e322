// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * FusedScatter      path FUSED: one kernel multiplies, sends and reduces
 * NcclScatter       path NCCL: one matmul, reduce-scatter of the group
 * P2pScatterPath    common part of the paths over P2P buffers
 * PipelinedScatter  path PIPELINED: matmuls of parts, overlapped with copies
 * StagedScatter     path GATHERED, and PIPELINED for small parts on GPUs: one matmul, reduce-scatter by a kernel; by copies on the CPU
 */
/**
 * Matmul + reduce-scatter: {@link org.djlx.fusedops.FusedOps#matmulReduceScatter}.
 *
 * <ul>
 *   <li>{@link MatmulReduceScatter} - the checked sizes of a call; runs it, and prepares its paths
 * </ul>
 */
package org.djlx.fusedops.internal.matmulreducescatter;
