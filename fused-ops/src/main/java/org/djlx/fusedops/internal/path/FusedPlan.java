// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

/**
 * The plan of all calls of a fused operator with the same {@link PlanKey}. The first call computes
 * the plan; later calls only enqueue it. Not thread-safe.
 */
public interface FusedPlan extends AutoCloseable {

    /** Frees the plan. Operations that are already enqueued no longer use it. */
    @Override
    void close();
}
