/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.trace;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.stream.IntStream;
import org.djlx.collectives.spi.GroupContext;

/**
 * The last operations of one rank of a group; the counterpart of c10d's flight recorder.
 *
 * <p>Always on. It keeps the last {@value #DEFAULT_SIZE} operations, or as many as the system
 * property {@value #SIZE_PROPERTY} says. When an operation fails, a timeout included but not a
 * mismatch after which the group stays usable, each rank that notices writes what it has to a file,
 * over what was there: at once, above all when the group breaks. If more fails in the next seconds,
 * such as messages, which leave the group usable, it writes for the last of them when these have
 * passed or the group is destroyed. It does not for what fails because the group is broken. A
 * thread of its own writes, so that no operation waits for a disk; a JVM that ends waits a while
 * for it.
 *
 * <p>Where, is logged, and stands in the exception: {@code flight-GROUP-rankN-pidP.json} in the
 * directory given by the system property {@value #DIRECTORY_PROPERTY}, or else by the environment
 * variable {@value #DIRECTORY_VARIABLE}, or else {@code java.io.tmpdir}. The record can also be had
 * at any time, here and over JMX ({@link FlightRecorderMXBean}). {@link FlightAnalysis} compares
 * the records of all ranks.
 *
 * <p>All methods are thread-safe.
 */
public final class FlightRecorder {

    /** How many operations are kept unless told otherwise. */
    public static final int DEFAULT_SIZE = 1000;

    /** The system property that says how many operations are kept: a positive number. */
    public static final String SIZE_PROPERTY = "org.djlx.collectives.flightRecorder.size";

    /** The system property that says where the record of a group that breaks is written. */
    public static final String DIRECTORY_PROPERTY = "org.djlx.collectives.flightRecorder.directory";

    /** The environment variable that says the same, for processes started by a launcher. */
    public static final String DIRECTORY_VARIABLE = "DJLX_FLIGHT_RECORDER_DIRECTORY";

    private final GroupContext context;
    private final String backend;
    private final String job;
    private final AtomicReferenceArray<FlightRecord> ring;

    FlightRecorder(GroupContext context, String backend, String job, int size) {
        this.context = context;
        this.backend = backend;
        this.job = job;
        ring = new AtomicReferenceArray<>(size);
    }

    String group() {
        return context.name();
    }

    int rank() {
        return context.rank();
    }

    int worldSize() {
        return context.worldSize();
    }

    String job() {
        return job;
    }

    String backend() {
        return backend;
    }

    /** Puts a record into the place of the oldest. */
    void put(long id, FlightRecord record) {
        ring.setRelease((int) (id % ring.length()), record);
    }

    /**
     * Returns the record as it is now.
     *
     * @return the last operations
     */
    public FlightDump dump() {
        return dump("requested", List.of());
    }

    /**
     * Writes the record as it is now to a file, as JSON.
     *
     * @param file the file; replaced if it exists
     * @throws IOException if it cannot be written
     */
    public void dump(Path file) throws IOException {
        dump().write(file);
    }

    FlightDump dump(String reason, List<Integer> missing) {
        WallClock clock = new WallClock();
        List<FlightEntry> entries =
                IntStream.range(0, ring.length())
                        .mapToObj(ring::getAcquire)
                        .filter(Objects::nonNull)
                        .map(record -> record.entry(clock))
                        .filter(Objects::nonNull)
                        .sorted(Comparator.comparingLong(FlightEntry::recordId))
                        .toList();
        return new FlightDump(
                FlightDump.VERSION,
                job,
                group(),
                rank(),
                worldSize(),
                backend,
                host(),
                ProcessHandle.current().pid(),
                clock.now(),
                reason,
                missing,
                entries);
    }

    /** Asked for once, as the name may come from far away. */
    private static final class Host {

        static final String NAME = name();

        private static String name() {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException e) {
                return null;
            }
        }
    }

    static String host() {
        return Host.NAME;
    }

    @Override
    public String toString() {
        return "FlightRecorder(" + group() + ", rank " + rank() + " of " + worldSize() + ")";
    }
}
