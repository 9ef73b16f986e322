// SPDX-License-Identifier: Apache-2.0
/**
 * The common part of operators: arguments, plans, the choice of a path, and building blocks of
 * paths. {@link MatmulPlan} asks {@link PathChooser} for the path, unless {@link Fallbacks} has a
 * reason for NCCL; the paths stand in the operator's own package.
 *
 * <ul>
 *   <li>{@link Axes} - moves and merges dimensions of arrays
 *   <li>{@link Fallbacks} - the paths that are forced in this JVM, and the reasons to fall back
 *   <li>{@link FusedPlan} - a plan: everything about a call that depends on its PlanKey only
 *   <li>{@link GatheredExchange} - all-gather and reduce-scatter by one kernel (GATHERED)
 *   <li>{@link GraphAwarePath} - a path for eager calls and another for calls recorded into a CUDA
 *       graph
 *   <li>{@link GroupPlans} - plans of a group, and the state that they share
 *   <li>{@link MatmulPath} - one path of a matmul fused with a collective
 *   <li>{@link MatmulPlan} - plan of a matmul fused with a collective: chooses and holds its path
 *   <li>{@link NcclPath} - path NCCL, the fallback: a collective of the group, and one matmul
 *   <li>{@link OperandChecks} - checks of arguments, with the operator's name in messages
 *   <li>{@link Operands} - the arrays of a call
 *   <li>{@link OperationScope} - temporary arrays of an operation, closed when it has ended
 *   <li>{@link P2pPath} - a path over P2P buffers
 *   <li>{@link PathCache} - times of paths that this machine has measured, in files
 *   <li>{@link PathChooser} - decides the path: forced, measured, or predicted by the cost model
 *   <li>{@link PathMeasurement} - measures the paths of an operator, for FusedOps.measurePaths
 *   <li>{@link Pipeline} - orders matmuls of parts and copies beside them (PIPELINED)
 *   <li>{@link PlanKey} - key of a plan: operator, shapes, strides, type, device
 *   <li>{@link Slots} - layout of the P2P buffers of an operation
 *   <li>{@link Usage} - reports calls of operators to listeners
 * </ul>
 */
package org.djlx.fusedops.internal.path;
