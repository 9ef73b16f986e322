// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.stream.IntStream;
import org.djlx.collectives.spi.GroupContext;

/**
 * The last operations of one rank of a group; the counterpart of c10d's flight recorder.
 *
 * <p>Always on. It keeps the last {@value #DEFAULT_SIZE} operations; the system property {@value
 * #SIZE_PROPERTY} changes the number.
 *
 * <ul>
 *   <li><b>When an operation fails</b> or times out, each rank that notices the failure writes its
 *       record to a file, replacing an earlier file. Nothing is written for a mismatch that leaves
 *       the group usable, or if the group is already broken. Repeated message failures are written
 *       once every few seconds.
 *   <li><b>The file</b> is {@code flight-GROUP-rankN-pidP.json} in the directory of the system
 *       property {@value #DIRECTORY_PROPERTY}, or else of the environment variable {@value
 *       #DIRECTORY_VARIABLE}, or else {@code java.io.tmpdir}. The log and the exception name the
 *       file.
 *   <li><b>A separate thread</b> writes the file, so no operation waits for the disk. At JVM exit
 *       pending records are written within a few seconds.
 *   <li><b>At any time</b> the record is available from {@link #dump()} and over JMX ({@link
 *       FlightRecorderMXBean}). {@link FlightAnalysis} compares the records of all ranks.
 * </ul>
 *
 * <p>All methods are thread-safe.
 */
public final class FlightRecorder {

    /** The default number of operations that are kept. */
    public static final int DEFAULT_SIZE = 1000;

    /** The system property that sets the number of operations kept: a positive number. */
    public static final String SIZE_PROPERTY = "org.djlx.collectives.flightRecorder.size";

    /** The system property that sets the directory of the files. */
    public static final String DIRECTORY_PROPERTY = "org.djlx.collectives.flightRecorder.directory";

    /** The environment variable that sets the directory, for processes started by a launcher. */
    public static final String DIRECTORY_VARIABLE = "DJLX_FLIGHT_RECORDER_DIRECTORY";

    // File names have at most 255 bytes, so long group names are shortened.
    private static final int MAX_NAME = 100;

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

    /** Adds a record; it replaces the oldest. */
    void put(long id, FlightRecord record) {
        ring.setRelease((int) (id % ring.length()), record);
    }

    /** {@return a dump of the current record} */
    public FlightDump dump() {
        return dump("requested", List.of());
    }

    /** Writes the current record to a file, as JSON; replaces an existing file. */
    public void dump(Path file) throws IOException {
        dump().write(file);
    }

    FlightDump dump(String reason, List<Integer> missing) {
        // In one shift of System.nanoTime, times stay in order even if the wall clock is changed.
        long now = ChronoUnit.NANOS.between(Instant.EPOCH, Instant.now());
        long shift = now - System.nanoTime();
        List<FlightEntry> entries =
                IntStream.range(0, ring.length())
                        .mapToObj(ring::getAcquire)
                        .filter(Objects::nonNull)
                        .map(record -> record.entry(shift))
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
                now,
                reason,
                missing,
                entries);
    }

    /** Returns the file of the flight record of a rank of a group. */
    static Path file(String group, int rank) {
        String directory = System.getProperty(DIRECTORY_PROPERTY);
        if (directory == null) {
            directory = System.getenv(DIRECTORY_VARIABLE);
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

    /** The host's name, looked up once: the lookup may go over the network. */
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
