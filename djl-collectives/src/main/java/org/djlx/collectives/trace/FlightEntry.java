// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import com.google.gson.annotations.SerializedName;
import java.util.List;

/**
 * One operation in a {@link FlightDump}. Times are nanoseconds since 1970; durations come from a
 * monotonic clock. Null fields are omitted from the JSON.
 *
 * @param recordId its number among all operations that this rank recorded, from 1
 * @param isMessage whether it is a send or a receive, which are numbered separately; {@code is_p2p}
 *     in the JSON, as in c10d
 * @param collectiveSeqId its number within the group; the same on all ranks for collectives
 * @param profilingName the backend and the kind, such as {@code shm:allReduce}
 * @param call the kind with the arguments that all ranks must agree on, such as {@code
 *     allReduce(float32, (2, 3), SUM)}
 * @param sizes the shape that all ranks agree on; null if there is no tensor
 * @param dtype the element type, such as {@code float32}; null if there is no tensor
 * @param reduceOp the reduce op, or null
 * @param bytes the size of a tensor of that shape and type
 * @param timeCreatedNs when it was called
 * @param timeDiscoveredStartedNs when its execution began, or null
 * @param timeDiscoveredCompletedNs when it completed or failed, or null
 * @param queuedMs the time from call to start, or null
 * @param durationMs the time from start to end, or null
 * @param algorithm the algorithm that the backend chose, or null
 * @param exception the failure, or null
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

    /** The state of an operation. */
    public enum State {
        /** Called, not started. */
        @SerializedName("scheduled")
        SCHEDULED,
        /** Executing. */
        @SerializedName("started")
        STARTED,
        /** Completed without a failure. */
        @SerializedName("completed")
        COMPLETED,
        /** Failed with an exception. */
        @SerializedName("failed")
        FAILED
    }

    /** Returns whether the operation timed out. */
    boolean isTimedOut() {
        return state == State.FAILED
                && timeDiscoveredCompletedNs != null
                && timeDiscoveredCompletedNs - timeCreatedNs >= timeoutMs * NANOS_PER_MILLI;
    }

    /** Checks that the fields that the analysis needs are present. */
    void check() {
        FlightDump.require("profiling_name", profilingName);
        FlightDump.require("call", call);
        FlightDump.require("state", state);
        if (collectiveSeqId < 1) {
            throw new IllegalArgumentException(
                    "collective_seq_id "
                            + collectiveSeqId
                            + " is out of range: numbers begin at 1");
        }
    }
}
