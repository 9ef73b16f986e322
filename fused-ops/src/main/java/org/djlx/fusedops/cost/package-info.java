// SPDX-License-Identifier: Apache-2.0
/**
 * The cost model: predicts the time of a fused operator on each path, and the fastest path. {@code
 * internal.path.PathChooser} asks it, unless a path is forced or was measured.
 *
 * <ul>
 *   <li>{@link Choice} - the chosen path, and why
 *   <li>{@link CostModel} - time of an operator on each path, its lower bound, and the choice
 *   <li>{@link FusedMatmulModel} - time of the path FUSED
 *   <li>{@link FusedOperator} - the operators
 *   <li>{@link Machine} - the constants of the model for a kind of GPU
 *   <li>{@link Measurement} - the measurements that the constants are fitted to
 *   <li>{@link Network} - the network between hosts
 *   <li>{@link Path} - the paths of an operator: FUSED, PIPELINED, GATHERED, NCCL
 *   <li>{@link Prediction} - predicted time of a path
 *   <li>{@link Workload} - an operator with its sizes
 * </ul>
 */
package org.djlx.fusedops.cost;
