// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.trace.FlightEntry.State;

/** Dumps as ranks would leave them. */
final class TestDumps {

    static final String GROUP = "g";

    private TestDumps() {}

    static FlightEntry entry(long sequence, String call, State state) {
        boolean started = state != State.SCHEDULED;
        boolean ended = state == State.COMPLETED || state == State.FAILED;
        return new FlightEntry(
                sequence,
                false,
                sequence,
                "test:" + call.substring(0, call.indexOf('(')),
                call,
                List.of(2L, 3L),
                "float32",
                "SUM",
                24,
                60_000,
                state,
                1_000 * sequence,
                started ? 1_000 * sequence + 1 : null,
                ended ? 1_000 * sequence + 2 : null,
                started ? 0.000_001 : null,
                ended ? 0.000_001 : null,
                "magic",
                state == State.FAILED ? "it broke" : null);
    }

    /** A call that was issued at some time and failed, both in milliseconds since the first. */
    static FlightEntry failed(
            long sequence, String call, long timeoutMs, long createdMs, long endedMs) {
        long begin = 1_700_000_000_000_000_000L;
        return new FlightEntry(
                sequence,
                false,
                sequence,
                "test:" + call.substring(0, call.indexOf('(')),
                call,
                null,
                null,
                null,
                0,
                timeoutMs,
                State.FAILED,
                begin + createdMs * 1_000_000,
                begin + createdMs * 1_000_000,
                begin + endedMs * 1_000_000,
                0.0,
                (double) (endedMs - createdMs),
                null,
                "it broke");
    }

    static FlightDump dump(int rank, int worldSize, List<FlightEntry> entries) {
        return dump(GROUP, rank, worldSize, List.of(), entries);
    }

    static FlightDump dump(
            String group,
            int rank,
            int worldSize,
            List<Integer> missing,
            List<FlightEntry> entries) {
        return dump("job", 0, group, rank, worldSize, missing, entries);
    }

    /** A dump of a job, taken some nanoseconds after others. */
    static FlightDump dump(
            String job,
            long after,
            String group,
            int rank,
            int worldSize,
            List<Integer> missing,
            List<FlightEntry> entries) {
        return new FlightDump(
                FlightDump.VERSION,
                job,
                group,
                rank,
                worldSize,
                "test",
                "host",
                100 + rank,
                1_700_000_000_123_456_789L + after,
                "requested",
                missing,
                entries);
    }

    /** A rank that completed some calls, from a number on. */
    static FlightDump completed(int rank, int worldSize, long first, String... calls) {
        List<FlightEntry> entries = new ArrayList<>();
        for (String call : calls) {
            entries.add(entry(first + entries.size(), call, State.COMPLETED));
        }
        return dump(rank, worldSize, entries);
    }
}
