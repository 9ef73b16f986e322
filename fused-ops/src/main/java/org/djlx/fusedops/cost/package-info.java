/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * What a fused operator costs by each of the ways to run it, and which way is taken.
 *
 * <pre>
 *   Path           the ways
 *   FusedOperator  the operators
 *   Workload       an operator with its sizes
 *   Machine        a kind of GPU, by the constants of the model
 *   CostModel      what a path takes, the limit of an operator, and the choice
 *   OneLaunch      what one launch takes: tiles dealt out to multiprocessors in waves
 *   Prediction     what a path is predicted to take
 *   Choice         the path that is taken, and why
 *   Network        what joins hosts, and gradients that are summed across it
 *   Measurement    what was measured: the rows that the constants are fitted to
 * </pre>
 */
package org.djlx.fusedops.cost;
