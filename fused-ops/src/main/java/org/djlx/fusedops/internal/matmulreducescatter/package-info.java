// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CopyScatter       path GATHERED on the CPU: one matmul, reduce-scatter by copies
 * FusedScatter      path FUSED: one kernel multiplies, sends and reduces
 * KernelScatter     path GATHERED on GPUs, and PIPELINED for small parts: one matmul, reduce-scatter by a kernel
 * NcclScatter       path NCCL: one matmul, reduce-scatter of the group
 * P2pScatterPath    common part of the paths over P2P buffers
 * PipelinedScatter  path PIPELINED: matmuls of parts, overlapped with copies
 * StagedScatter     common part of the paths with one matmul into staging memory
 */
/**
 * Matmul + reduce-scatter: {@link org.djlx.fusedops.FusedOps#matmulReduceScatter}.
 *
 * <ul>
 *   <li>{@link MatmulReduceScatter} - the checked sizes of a call; runs it, and prepares its paths
 * </ul>
 */
package org.djlx.fusedops.internal.matmulreducescatter;
