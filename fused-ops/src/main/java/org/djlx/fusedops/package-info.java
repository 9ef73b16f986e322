// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * AllGatherMatmul       checked sizes of an all-gather + matmul; prepares its paths
 * AllReduceRmsNormPlan  plan of an all-reduce + RMSNorm
 * Axes                  moves and merges dimensions of arrays
 * CallerPipeline        pipelines with a computation of the caller
 * FusedGradients        records the operators in a GradientScope, and computes their gradients
 * FusedPath             path FUSED: one kernel pushes, waits and multiplies
 * FusedPlan             a plan: everything about a call that depends on its PlanKey only
 * GatheredPath          path GATHERED: one matmul, all communication before or after it
 * GraphAwarePath        a path for eager calls and another for calls recorded into a CUDA graph
 * GroupPlans            the state of a group: its plans, and what they share
 * HostSplits            splits of all ranks, checked on the host, and the chunks of this rank
 * MatmulAllReduce       checked sizes of a matmul + all-reduce; runs it in pieces of rows
 * MatmulPath            one path of a matmul fused with a collective
 * MatmulPlan            plan of a matmul fused with a collective: chooses and holds its path
 * MatmulReduceScatter   checked sizes of a matmul + reduce-scatter; prepares its paths
 * NcclPath              path NCCL, the fallback: a collective of the group, and one matmul
 * OperandChecks         checks of arguments, with the operator's name in messages
 * Operands              the arrays of a call
 * OperationScope        temporary arrays of an operation, closed when it has ended
 * P2pGatherPath         common part of the paths of all-gather + matmul over P2P buffers
 * P2pPath               common part of all paths over P2P buffers
 * P2pScatterPath        common part of the paths of matmul + reduce-scatter over P2P buffers
 * PathChooser           chooses a path: forced, measured, or predicted by the cost model
 * PathMeasurement       measures the paths of an operator, for FusedOps.measurePaths
 * PipelinedPath         path PIPELINED: matmuls of parts, overlapped with copies
 * PlanKey               operator, shapes, strides, type, device: what a plan depends on
 */
/**
 * Tensor-parallel operators that overlap communication with the matmul.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.ChunkProducer} - a computation before a pipelined all-to-all
 *   <li>{@link org.djlx.fusedops.FallbackReason} - why a call fell back to the group's collective
 *   <li>{@link org.djlx.fusedops.FusedOps} - all-gather + matmul (also gated), matmul +
 *       reduce-scatter, both for float8, too, matmul + all-reduce, all-reduce + RMSNorm, pipelines
 *   <li>{@link org.djlx.fusedops.GatheredMatmul} - result of all-gather + matmul
 *   <li>{@link org.djlx.fusedops.LowContention} - all-gather and reduce-scatter by copy engines
 *   <li>{@link org.djlx.fusedops.NormedResidual} - result of all-reduce + RMSNorm
 *   <li>{@link org.djlx.fusedops.ShardConsumer} - a computation after a pipelined all-gather
 *   <li>{@link org.djlx.fusedops.UsageCounter} - counts calls by path
 *   <li>{@link org.djlx.fusedops.VariableAllToAll} - all-to-all with splits on the device
 * </ul>
 */
package org.djlx.fusedops;
