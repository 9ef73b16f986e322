// SPDX-License-Identifier: Apache-2.0
/**
 * Tensor-parallel operators that overlap communication with the matmul. Each operator has a package
 * under {@code internal}: its checked sizes, its plan and its paths. {@code internal.path} holds
 * their common part, such as {@code PathChooser}, which decides the path of all-gather + matmul and
 * of matmul + reduce-scatter.
 *
 * <ul>
 *   <li>{@link ChunkProducer} - a computation before a pipelined all-to-all
 *   <li>{@link FallbackReason} - why a call fell back to the group's collective
 *   <li>{@link FusedOps} - all-gather + matmul (also gated), matmul + reduce-scatter, both for
 *       float8, too, matmul + all-reduce, all-reduce + RMSNorm, pipelines
 *   <li>{@link GatheredMatmul} - result of all-gather + matmul
 *   <li>{@link LowContention} - all-gather and reduce-scatter by copy engines
 *   <li>{@link NormedResidual} - result of all-reduce + RMSNorm
 *   <li>{@link ShardConsumer} - a computation after a pipelined all-gather
 *   <li>{@link UsageCounter} - counts calls by path
 *   <li>{@link VariableAllToAll} - all-to-all with splits on the device
 * </ul>
 */
package org.djlx.fusedops;
