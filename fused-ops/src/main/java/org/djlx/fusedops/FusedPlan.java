// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

/**
 * Everything about the calls of a fused operator that have the same {@link PlanKey}. Computed for
 * the first of these calls, then only enqueued. Not thread-safe.
 */
interface FusedPlan extends AutoCloseable {

    /** Frees the plan. Operations that it has enqueued do not use it any more. */
    @Override
    void close();
}
