// SPDX-License-Identifier: Apache-2.0
/**
 * The cost model: predicts the time of a fused operator on each path, and the fastest path. {@code
 * internal.path.PathChooser} asks it, unless a path is forced or was measured.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.cost.Choice} - the chosen path, and why
 *   <li>{@link org.djlx.fusedops.cost.CostModel} - time of an operator on each path, its lower
 *       bound, and the choice
 *   <li>{@link org.djlx.fusedops.cost.FusedMatmulModel} - time of the path FUSED
 *   <li>{@link org.djlx.fusedops.cost.FusedOperator} - the operators
 *   <li>{@link org.djlx.fusedops.cost.Machine} - the constants of the model for a kind of GPU
 *   <li>{@link org.djlx.fusedops.cost.Measurement} - the measurements that the constants are fitted
 *       to
 *   <li>{@link org.djlx.fusedops.cost.Network} - the network between hosts
 *   <li>{@link org.djlx.fusedops.cost.Path} - the paths of an operator: FUSED, PIPELINED, GATHERED,
 *       NCCL
 *   <li>{@link org.djlx.fusedops.cost.Prediction} - predicted time of a path
 *   <li>{@link org.djlx.fusedops.cost.Workload} - an operator with its sizes
 * </ul>
 */
package org.djlx.fusedops.cost;
