/**
 * Tensor-parallel operators that hide their communication behind the matmul. A plus marks what
 * users call.
 *
 * <pre>
 * + FusedOps                 all-gather + matmul, also gated, matmul + reduce-scatter, all-reduce +
 *                            RMSNorm
 * + GatheredMatmul           what the first of them returns
 * + NormedResidual           what the last of them returns
 * + LowContention            all-gather and reduce-scatter by copy engines
 * + UsageCounter             how many calls took which path
 * + FallbackReason           why one took the plain path
 *   GroupPlans               what is kept for a group: the plans used last, and what they share
 *   PathChooser              which path a plan takes
 *   PlanKey                  what a plan is made for
 *   FusedPlan                all about a call that does not change from one to the next
 *   AllGatherMatmulPlan      that of all-gather + matmul
 *   MatmulReduceScatterPlan  that of matmul + reduce-scatter
 *   AllReduceRmsNormPlan     that of all-reduce + RMSNorm
 *   FusedGradients           the operators where gradients are recorded
 *   OperandChecks            checks of arguments
 *   OperationScope           what lives until an operation has ended
 *   Axes                     moves dimensions
 * </pre>
 */
package org.djlx.fusedops;
