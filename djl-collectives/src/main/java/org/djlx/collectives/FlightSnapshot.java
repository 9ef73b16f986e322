/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.djlx.collectives.trace.FlightDump;
import org.djlx.collectives.trace.FlightEntry;
import org.djlx.collectives.trace.FlightEntry.State;
import org.djlx.nativeops.ScalarType;

/** Turns a {@link FlightRecorder}'s ring into a {@link FlightDump}. */
final class FlightSnapshot {

    private static final double NANOS_PER_MILLI = 1e6;
    // How much of a group's name is in that of its file: the system takes at most 255 bytes.
    private static final int MAX_NAME = 100;

    private final String backend;
    private final List<FlightEntry> entries = new ArrayList<>();
    // The same moment on both clocks. Wall-clock times are derived here, so recording needs one
    // clock only, and the order of the times is right even if the wall clock is set.
    private final long wallNow = wallClock();
    private final long nanosNow = System.nanoTime();

    private FlightSnapshot(String backend) {
        this.backend = backend;
    }

    static FlightDump take(
            FlightRecorder recorder, FlightSlot[] ring, String reason, List<Integer> missing) {
        FlightSnapshot snapshot = new FlightSnapshot(recorder.backend());
        for (FlightSlot slot : ring) {
            slot.copyTo(snapshot);
        }
        snapshot.entries.sort(Comparator.comparingLong(FlightEntry::recordId));
        return new FlightDump(
                FlightDump.VERSION,
                recorder.group(),
                recorder.rank(),
                recorder.worldSize(),
                recorder.backend(),
                host(),
                ProcessHandle.current().pid(),
                snapshot.wallNow,
                reason,
                missing,
                snapshot.entries);
    }

    void add(
            long id,
            long sequence,
            long[] signature,
            long bytes,
            Duration timeout,
            State state,
            long scheduled,
            Long started,
            Long ended,
            String algorithm,
            String exception) {
        String call = Operation.describe(signature);
        ScalarType type = Operation.elementType(signature);
        ReduceOp op = Operation.reduceOp(signature);
        entries.add(
                new FlightEntry(
                        id,
                        Operation.isPointToPoint(signature),
                        sequence,
                        backend + ":" + OpType.decodeName(signature),
                        call,
                        type == null
                                ? null
                                : Arrays.stream(Operation.shape(signature)).boxed().toList(),
                        type == null ? null : type.name().toLowerCase(Locale.ROOT),
                        op == null ? null : op.toString(),
                        bytes,
                        timeout.toMillis(),
                        state,
                        wall(scheduled),
                        started == null ? null : wall(started),
                        ended == null ? null : wall(ended),
                        started == null ? null : (started - scheduled) / NANOS_PER_MILLI,
                        started == null || ended == null
                                ? null
                                : (ended - started) / NANOS_PER_MILLI,
                        algorithm,
                        exception));
    }

    private long wall(long nanos) {
        return wallNow + (nanos - nanosNow);
    }

    private static long wallClock() {
        Instant now = Instant.now();
        return TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano();
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            return null;
        }
    }

    /** Where the record of a group that breaks goes; another file for each group and rank. */
    static Path file(String group, int rank) {
        String directory = System.getProperty(FlightRecorder.DIRECTORY_PROPERTY);
        if (directory == null) {
            directory = System.getenv(FlightRecorder.DIRECTORY_VARIABLE);
        }
        if (directory == null) {
            directory = System.getProperty("java.io.tmpdir");
        }
        String name = group.replaceAll("[^A-Za-z0-9._-]", "_");
        if (!name.equals(group) || name.length() > MAX_NAME) {
            UUID hash = UUID.nameUUIDFromBytes(group.getBytes(StandardCharsets.UTF_8));
            name = name.substring(0, Math.min(name.length(), MAX_NAME)) + "-" + hash;
        }
        long pid = ProcessHandle.current().pid();
        return Path.of(directory, "flight-" + name + "-rank" + rank + "-pid" + pid + ".json");
    }
}
