// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.time.Duration;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/**
 * Decides when a group's flight record is written after a failure:
 *
 * <ul>
 *   <li>The first failure is written immediately.
 *   <li>Messages may fail repeatedly while the group stays usable. For some time after a write,
 *       only the last such failure is kept; it is written when the time has passed or the group is
 *       destroyed.
 *   <li>The first collective that fails is written immediately: it breaks the group, and the
 *       process may end.
 *   <li>Later failures of a broken group are not written: the file shows the first failure, which
 *       is the cause.
 * </ul>
 *
 * <p>Used by the {@link DumpWriter}'s thread only.
 */
final class FailureDumps {

    /** The minimum time between two writes. */
    static final Duration INTERVAL = Duration.ofSeconds(5);

    /** An operation that failed. */
    record Failure(Throwable cause, String message, boolean isMessage) {}

    private final Consumer<Failure> write;
    private final Executor afterInterval;

    private Throwable collective; // why a collective failed last
    private Failure waiting;
    private boolean resting;
    private boolean closed;

    FailureDumps(Consumer<Failure> write) {
        this(write, task -> DumpWriter.executeAfter(INTERVAL, task));
    }

    /** Creates an instance with a given clock, for tests. */
    FailureDumps(Consumer<Failure> write, Executor afterInterval) {
        this.write = write;
        this.afterInterval = afterInterval;
    }

    /** Reports that an operation failed; the record is written now, later or not at all. */
    void failed(Failure failure) {
        if (closed || isConsequence(failure.cause())) {
            return;
        }
        boolean urgent = !failure.isMessage() && collective == null;
        if (!failure.isMessage()) {
            collective = failure.cause();
        }
        if (resting && !urgent) {
            waiting = failure;
        } else {
            write(failure);
        }
    }

    private boolean isConsequence(Throwable failure) {
        return collective != null && (failure == collective || failure.getCause() == collective);
    }

    private void write(Failure failure) {
        waiting = null;
        if (!resting) {
            resting = true;
            afterInterval.execute(this::endRest);
        }
        write.accept(failure);
    }

    private void endRest() {
        resting = false;
        writeWaiting();
    }

    private void writeWaiting() {
        if (waiting != null) {
            write(waiting);
        }
    }

    /** Writes a pending failure; later failures are ignored. */
    void close() {
        if (!closed) {
            closed = true;
            writeWaiting();
        }
    }
}
