/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.trace;

import java.time.Duration;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/**
 * Decides when a failure makes a group's record be written. At once; but messages may fail again
 * and again, and the group goes on: for some time after it was written, the last failure waits
 * until that time has passed or the group is destroyed. The first collective that fails does not
 * wait: most likely it breaks the group, and the process may end. What fails because of it is not
 * written, or the file would no longer say how it came about.
 *
 * <p>For one thread, the {@link DumpWriter}'s.
 */
final class FailureDumps {

    /** How long a record stands, at the least, before the next replaces it. */
    static final Duration INTERVAL = Duration.ofSeconds(5);

    /**
     * An operation that failed.
     *
     * @param cause why
     * @param message the same in words
     * @param isMessage whether the operation was a message between two ranks
     */
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

    /**
     * Creates it with a clock of one's own.
     *
     * @param write writes the record, with the failure as the reason
     * @param afterInterval runs a task when the interval has passed that begins now
     */
    FailureDumps(Consumer<Failure> write, Executor afterInterval) {
        this.write = write;
        this.afterInterval = afterInterval;
    }

    /** Writes the record, now or later, as an operation has failed. */
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

    /** Writes what waits, and nothing any more. */
    void close() {
        if (!closed) {
            closed = true;
            writeWaiting();
        }
    }
}
