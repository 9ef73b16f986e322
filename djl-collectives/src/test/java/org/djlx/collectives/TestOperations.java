// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.time.Duration;
import java.util.function.Function;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.OperationTrace;

/** Operations without a group, for tests of traces. */
public final class TestOperations {

    private TestOperations() {}

    /** Creates an operation. */
    public static Operation create(
            OpType type, long sequence, String group, Duration timeout, Operation.Agreed agreed) {
        return new Operation(type, sequence, group, timeout, agreed);
    }

    /** Issues an operation as a group does. */
    public static void schedule(
            Operation operation, Function<Operation, OperationTrace> scheduled) {
        operation.setTrace(scheduled.apply(operation));
    }

    private record Untraced() implements OperationTrace {

        @Override
        public void withdrawn() {}

        @Override
        public void started() {}

        @Override
        public String ended(Throwable failure) {
            return null;
        }
    }

    /** Issues an operation that has no listener of events. */
    public static void scheduleUntraced(Operation operation) {
        operation.setTrace(new Untraced());
    }

    /** Takes an operation back as a group does if the backend refuses it. */
    public static void withdraw(Operation operation) {
        operation.withdrawn();
    }
}
