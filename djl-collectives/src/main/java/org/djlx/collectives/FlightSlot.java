/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.time.Duration;
import org.djlx.collectives.trace.FlightEntry.State;

/**
 * One place in a {@link FlightRecorder}'s ring, used again for another operation when the ring has
 * gone round. Times are those of {@link System#nanoTime}. A report about an operation that has lost
 * its place is ignored. Thread-safe.
 */
final class FlightSlot {

    // Guarded by this; hardly ever contended: by a dump, or if the ring is full of pending work.
    private final long[] signature = new long[Operation.SIGNATURE_WORDS];
    private long id; // 0 if the place is free
    private long sequence;
    private long bytes;
    private Duration timeout;
    private State state;
    private boolean begun;
    private long scheduledNanos;
    private long startedNanos;
    private long endedNanos;
    private String algorithm;
    private String exception;

    synchronized void schedule(Operation operation) {
        id = operation.recordId;
        sequence = operation.sequence();
        System.arraycopy(operation.signature(), 0, signature, 0, signature.length);
        bytes = operation.byteSize();
        timeout = operation.timeout();
        state = State.SCHEDULED;
        begun = false;
        algorithm = null;
        exception = null;
        scheduledNanos = System.nanoTime();
    }

    synchronized void withdraw(Operation operation) {
        if (id == operation.recordId) {
            id = 0;
        }
    }

    /** Returns how long the operation was queued; 0 if that is not known any more. */
    synchronized long start(Operation operation) {
        if (id != operation.recordId) {
            return 0;
        }
        state = State.STARTED;
        begun = true;
        startedNanos = System.nanoTime();
        return startedNanos - scheduledNanos;
    }

    synchronized void end(Operation operation, Throwable failure) {
        if (id != operation.recordId) {
            return;
        }
        endedNanos = System.nanoTime();
        algorithm = operation.algorithm();
        if (failure == null) {
            state = State.COMPLETED;
        } else {
            state = State.FAILED;
            exception = failure.getMessage() == null ? failure.toString() : failure.getMessage();
        }
    }

    /** Adds what is here to a snapshot. */
    synchronized void copyTo(FlightSnapshot snapshot) {
        if (id == 0) {
            return;
        }
        boolean ended = state == State.COMPLETED || state == State.FAILED;
        snapshot.add(
                id,
                sequence,
                signature,
                bytes,
                timeout,
                state,
                scheduledNanos,
                begun ? startedNanos : null,
                ended ? endedNanos : null,
                algorithm,
                exception);
    }
}
