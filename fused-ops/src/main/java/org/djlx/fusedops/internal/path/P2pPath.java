// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import java.util.Optional;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.cost.Choice;

/**
 * A path over P2P buffers.
 *
 * @param <C> the arrays of a call and their addresses
 */
public abstract class P2pPath<R, C> implements MatmulPath<R> {

    protected final Slots slots;
    protected final GroupPlans plans;
    protected final long partBytes; // that a rank sends to each other rank
    private final OpType type;
    private final Agreed agreed;
    protected final Choice choice;
    private final String algorithm;

    /** Prepares a path whose ranks send each other a given number of bytes. */
    protected P2pPath(
            ProcessGroup group, MatmulPlan.Operator<R> operator, Choice choice, long partBytes) {
        this.plans = GroupPlans.of(group);
        this.partBytes = partBytes;
        this.slots = new Slots(group.requireP2pBuffers(), partBytes);
        this.type = operator.opType();
        this.agreed = operator.agreed();
        this.choice = choice;
        this.algorithm = choice.path().toString();
    }

    /** Makes the arrays of a call: copies where operands cannot be used in place, and results. */
    protected abstract C arrays(OperationScope scope, Operands operands);

    /** Enqueues the call; on the CPU, runs it. */
    protected abstract void enqueue(Operation operation, C call);

    /** Returns the results, with dimensions in their original order. */
    protected abstract R result(C call);

    /** Enqueues a call. A lambda that captures costs 0.1 us until C2 has compiled its caller. */
    private record Body<C>(P2pPath<?, C> path, C call) implements Consumer<Operation> {

        @Override
        public void accept(Operation operation) {
            operation.setAlgorithm(path.algorithm);
            path.enqueue(operation, call);
        }
    }

    @Override
    public final Issued<R> run(ProcessGroup group, Operands operands) {
        Usage.count(type, choice, null);
        OperationScope scope = plans.scope();
        boolean issued = false;
        try {
            C call = arrays(scope, operands);
            Work work = group.execute(type, agreed, new Body<>(this, call));
            issued = true;
            scope.closeAfter(work);
            return new Issued<>(result(call), Optional.of(work));
        } finally {
            if (!issued) {
                scope.abandon();
            }
        }
    }
}
