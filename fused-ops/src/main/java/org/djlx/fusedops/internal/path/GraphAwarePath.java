// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.kernel.Compute;

/**
 * Two paths: one for eager calls, and one for calls that are recorded into a CUDA graph. Only plans
 * that need both paths use it, because checking for a capture takes host time.
 */
public final class GraphAwarePath<R> implements MatmulPath<R> {

    private final Compute compute;
    private final MatmulPath<R> eager;
    private final Preparation<R> preparation;
    private MatmulPath<R> recorded; // null before the first recorded call

    interface Preparation<R> {

        MatmulPath<R> prepare(ProcessGroup group, Operands operands);
    }

    GraphAwarePath(Compute compute, MatmulPath<R> eager, Preparation<R> preparation) {
        this.compute = compute;
        this.eager = eager;
        this.preparation = preparation;
    }

    @Override
    public Issued<R> run(ProcessGroup group, Operands operands) {
        if (!compute.isRecorded()) {
            return eager.run(group, operands);
        }
        if (recorded == null) {
            recorded = preparation.prepare(group, operands);
        }
        return recorded.run(group, operands);
    }

    @Override
    public void load(Operands operands) {
        eager.load(operands);
    }

    @Override
    public void close() {
        eager.close();
        if (recorded != null) {
            recorded.close();
        }
    }
}
