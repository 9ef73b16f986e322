/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.trace;

import com.google.gson.annotations.SerializedName;
import java.util.List;

/**
 * One operation in a {@link FlightDump}. Times are nanoseconds since 1970; durations come from a
 * monotonic clock. What is null is left out of the JSON.
 *
 * @param recordId its number among all operations that this rank recorded, from 1
 * @param isMessage whether it is a message between two ranks; these are numbered for themselves. In
 *     the JSON it is {@code is_p2p}, as in that of c10d
 * @param collectiveSeqId its number within the group; the same on all ranks unless it is a message
 * @param profilingName the backend and the kind, such as {@code shm:allReduce}
 * @param call the kind with what all ranks must agree on, such as {@code allReduce(float32, (2, 3),
 *     SUM)}
 * @param sizes the shape that all ranks agree on; null if there is no tensor
 * @param dtype the element type, such as {@code float32}; null if there is no tensor
 * @param reduceOp how it reduces, or null
 * @param bytes the size of a tensor of that shape and type
 * @param timeoutMs how long it may wait for the other ranks
 * @param state how far it is
 * @param timeCreatedNs when it was issued
 * @param timeDiscoveredStartedNs when its execution began, or null
 * @param timeDiscoveredCompletedNs when it ended, well or not, or null
 * @param queuedMs from its issue to its start, or null
 * @param durationMs from its start to its end, or null
 * @param algorithm how the backend did it, or null
 * @param exception why it failed, or null
 */
public record FlightEntry(
        long recordId,
        @SerializedName("is_p2p") boolean isMessage,
        long collectiveSeqId,
        String profilingName,
        String call,
        List<Long> sizes,
        String dtype,
        String reduceOp,
        long bytes,
        long timeoutMs,
        State state,
        long timeCreatedNs,
        Long timeDiscoveredStartedNs,
        Long timeDiscoveredCompletedNs,
        Double queuedMs,
        Double durationMs,
        String algorithm,
        String exception) {

    private static final long NANOS_PER_MILLI = 1_000_000;

    /** How far an operation is. */
    public enum State {
        /** Issued, not begun. */
        @SerializedName("scheduled")
        SCHEDULED,
        /** Being executed. */
        @SerializedName("started")
        STARTED,
        /** Ended well. */
        @SerializedName("completed")
        COMPLETED,
        /** Ended with an exception. */
        @SerializedName("failed")
        FAILED
    }

    /** Tells whether it failed after it had waited for other ranks as long as it may. */
    boolean isTimedOut() {
        return state == State.FAILED
                && timeDiscoveredCompletedNs != null
                && timeDiscoveredCompletedNs - timeCreatedNs >= timeoutMs * NANOS_PER_MILLI;
    }

    /** Checks that there is what the analysis needs, as JSON may lack anything. */
    void check() {
        FlightDump.require("profiling_name", profilingName);
        FlightDump.require("call", call);
        FlightDump.require("state", state);
        if (collectiveSeqId < 1) {
            throw new IllegalArgumentException("collective_seq_id is " + collectiveSeqId);
        }
    }
}
