/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.trace;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * Decides when a failure makes a group's record be written. At once; but messages may fail again
 * and again, and the group goes on: for some time after it was written, the last failure waits
 * until that time has passed or the group is destroyed. The first collective that fails does not
 * wait: most likely it breaks the group, and the process may end. What fails because of it is not
 * written, or the file would no longer say how it came about.
 *
 * <p>Thread-safe; one record is written at a time.
 */
final class FailureDumps {

    /** How long a record stands, at the least, before the next replaces it. */
    static final Duration INTERVAL = Duration.ofSeconds(5);

    private final Consumer<Throwable> write;
    private final Executor afterInterval;

    // Guarded by this.
    private Throwable collective; // the last failure of a collective
    private Throwable waiting;
    private boolean resting;
    private boolean closed;

    FailureDumps(Consumer<Throwable> write) {
        this(write, CompletableFuture.delayedExecutor(INTERVAL.toMillis(), TimeUnit.MILLISECONDS));
    }

    /**
     * Creates it with a clock of one's own.
     *
     * @param write writes the record, with the failure as the reason
     * @param afterInterval runs a task when the interval has passed that begins now
     */
    FailureDumps(Consumer<Throwable> write, Executor afterInterval) {
        this.write = write;
        this.afterInterval = afterInterval;
    }

    /** Writes the record, now or later, as an operation has failed. */
    synchronized void failed(Throwable failure, boolean isMessage) {
        if (closed || isConsequence(failure)) {
            return;
        }
        boolean urgent = !isMessage && collective == null;
        if (!isMessage) {
            collective = failure;
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

    private void write(Throwable failure) {
        waiting = null;
        write.accept(failure);
        if (!resting) {
            resting = true;
            afterInterval.execute(this::endRest);
        }
    }

    private synchronized void endRest() {
        resting = false;
        writeWaiting();
    }

    private void writeWaiting() {
        if (waiting != null) {
            write(waiting);
        }
    }

    /** Writes what waits, and nothing any more. */
    synchronized void close() {
        if (!closed) {
            closed = true;
            writeWaiting();
        }
    }
}
