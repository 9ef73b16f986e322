// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.util.Arrays;
import java.util.Locale;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.OperationTrace;
import org.djlx.collectives.trace.FlightEntry.State;
import org.djlx.nativeops.host.FailureText;

/**
 * The record of one operation: an entry in a {@link FlightRecorder}'s ring buffer until a later
 * record replaces it, and a JFR event. Times are in ns, of {@link System#nanoTime}.
 *
 * <p>Lock-free: each field of the entry is written once, before the state that announces it, and
 * readers read the state first.
 */
final class FlightRecord implements OperationTrace {

    private static final double NANOS_PER_MILLI = 1e6;

    private final GroupTrace group;
    private final Operation operation;
    private final long id;
    private final long scheduledNanos = System.nanoTime();
    private boolean begun;
    private long startedNanos;
    private long endedNanos;
    private String exception;
    private volatile State state = State.SCHEDULED; // null if it was withdrawn
    private CollectiveEvent event; // handing the operation to another thread makes it visible there

    FlightRecord(GroupTrace group, Operation operation, long id) {
        this.group = group;
        this.operation = operation;
        this.id = id;
    }

    @Override
    public void withdrawn() {
        state = null;
    }

    @Override
    public void started() {
        startedNanos = System.nanoTime();
        begun = true;
        state = State.STARTED;
        try {
            if (isEventWanted()) {
                event = CollectiveEvent.begin(startedNanos - scheduledNanos);
            }
        } catch (RuntimeException | Error e) {
            DumpWriter.lost("the JFR event of an operation", e);
        }
    }

    @Override
    public String ended(Throwable failure) {
        endedNanos = System.nanoTime();
        exception = failure == null ? null : FailureText.message(failure);
        state = failure == null ? State.COMPLETED : State.FAILED;
        try {
            if (!begun && isEventWanted()) {
                event = CollectiveEvent.begin(0); // It was never started: it has no duration.
            }
            if (event != null) {
                event.commit(operation, group.recorder().rank(), failure == null);
                event = null;
            }
        } catch (RuntimeException | Error e) {
            DumpWriter.lost("the event of an operation", e);
        }
        return failure == null ? null : group.failed(operation, failure, exception);
    }

    /** Asks JFR first: the event's class initialises JFR, which takes 65 ms. */
    private static boolean isEventWanted() {
        return jdk.jfr.FlightRecorder.isInitialized() && CollectiveEvent.isWanted();
    }

    /**
     * Returns the entry as known now; null if the operation was withdrawn. The shift is what to add
     * to {@link System#nanoTime} for nanoseconds since 1970.
     */
    FlightEntry entry(long shift) {
        State now = state;
        if (now == null) {
            return null;
        }
        boolean ended = now == State.COMPLETED || now == State.FAILED;
        boolean started = now != State.SCHEDULED && begun;
        Operation.Agreed agreed = operation.agreed();
        boolean hasTensor = agreed.elementType() != null;
        return new FlightEntry(
                id,
                operation.type().isPointToPoint(),
                operation.sequence(),
                group.recorder().backend() + ":" + operation.type(),
                Operation.describe(operation.signature()),
                hasTensor ? Arrays.stream(agreed.shape()).boxed().toList() : null,
                hasTensor ? agreed.elementType().name().toLowerCase(Locale.ROOT) : null,
                agreed.op() == null ? null : agreed.op().toString(),
                operation.byteSize(),
                operation.timeout().toMillis(),
                now,
                scheduledNanos + shift,
                started ? startedNanos + shift : null,
                ended ? endedNanos + shift : null,
                started ? (startedNanos - scheduledNanos) / NANOS_PER_MILLI : null,
                started && ended ? (endedNanos - startedNanos) / NANOS_PER_MILLI : null,
                ended ? operation.algorithm() : null,
                now == State.FAILED ? exception : null);
    }
}
