/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * AllGatherMatmulPlan      that of all-gather + matmul
 * AllReduceRmsNormPlan     that of all-reduce + RMSNorm
 * Axes                     moves dimensions
 * FusedGradients           the operators where gradients are recorded
 * FusedPlan                all about a call that does not change from one to the next
 * GroupPlans               what is kept for a group: the plans used last, and what they share
 * MatmulReduceScatterPlan  that of matmul + reduce-scatter
 * OperandChecks            checks of arguments
 * OperationScope           what lives until an operation has ended
 * PathChooser              which path a plan takes
 * PlanKey                  what a plan is made for
 */
/**
 * Tensor-parallel operators that hide their communication behind the matmul.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.FallbackReason} - why one took the plain path
 *   <li>{@link org.djlx.fusedops.FusedOps} - all-gather + matmul, also gated, matmul +
 *       reduce-scatter, all-reduce + RMSNorm
 *   <li>{@link org.djlx.fusedops.GatheredMatmul} - what the first of them returns
 *   <li>{@link org.djlx.fusedops.LowContention} - all-gather and reduce-scatter by copy engines
 *   <li>{@link org.djlx.fusedops.NormedResidual} - what the last of them returns
 *   <li>{@link org.djlx.fusedops.UsageCounter} - how many calls took which path
 * </ul>
 */
package org.djlx.fusedops;
