// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;

/**
 * One path of a matmul that is fused with a collective, prepared for the calls of one plan. Does
 * not refer to the group: a plan must not keep its group alive.
 */
@FunctionalInterface
public interface MatmulPath<R> extends AutoCloseable {

    /**
     * The outcome of a call.
     *
     * @param result the result; its elements are written when the work has ended
     * @param work the work that the caller waits for; empty if the path has already waited
     */
    record Issued<R>(R result, Optional<Work> work) {}

    /** Issues a call, with operands that match the plan. */
    Issued<R> run(ProcessGroup group, Operands operands);

    /**
     * Loads a library's kernels for the products. {@link #run} does so itself, unless the caller
     * issues something that waits for other ranks before it: on a GPU that ranks share, such a load
     * waits for it, and the other ranks wait for the load.
     */
    default void load(Operands operands) {}

    @Override
    default void close() {}
}
