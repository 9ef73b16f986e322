/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * What a fused operator costs by each of the ways to run it, and which way is taken.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.cost.Choice} - the path that is taken, and why
 *   <li>{@link org.djlx.fusedops.cost.CostModel} - what a path takes, the limit of an operator, and
 *       the choice
 *   <li>{@link org.djlx.fusedops.cost.FusedMatmulModel} - the cost of the path FUSED
 *   <li>{@link org.djlx.fusedops.cost.FusedOperator} - the operators
 *   <li>{@link org.djlx.fusedops.cost.Machine} - a kind of GPU, by the constants of the model
 *   <li>{@link org.djlx.fusedops.cost.Measurement} - what was measured: the rows that the constants
 *       are fitted to
 *   <li>{@link org.djlx.fusedops.cost.Network} - what joins hosts, and gradients that are summed
 *       across it
 *   <li>{@link org.djlx.fusedops.cost.Path} - the paths of an operator: FUSED, PIPELINED, GATHERED,
 *       NCCL
 *   <li>{@link org.djlx.fusedops.cost.Prediction} - what a path is predicted to take
 *   <li>{@link org.djlx.fusedops.cost.Workload} - an operator with its sizes
 * </ul>
 */
package org.djlx.fusedops.cost;
