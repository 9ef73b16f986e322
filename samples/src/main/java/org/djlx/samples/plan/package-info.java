// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Plan - the predicted cost of an operator by path
 */
/**
 * Predicts the cost of fused operators, and the path that they take.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.plan.PlanCommand} - {@code plan}
 * </ul>
 */
package org.djlx.samples.plan;
