// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import com.google.gson.FieldNamingPolicy;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonIOException;
import com.google.gson.JsonParseException;
import java.io.IOException;
import java.io.Writer;
import java.nio.charset.CharacterCodingException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Comparator;
import java.util.List;
import java.util.function.Predicate;
import java.util.stream.Stream;
import org.djlx.collectives.trace.FlightEntry.State;
import org.djlx.nativeops.host.FileWrites;
import org.djlx.nativeops.host.Required;

/**
 * The last operations of one rank of a group, as written to a file: JSON. Fields that c10d's flight
 * recorder also has have c10d's names.
 *
 * @param version the version of the format, {@value #VERSION}
 * @param job the id of the job, shared by all groups that were created from one group
 * @param host the name of the host, or null if it is not known
 * @param timeDumpedNs the time of the dump, in nanoseconds since 1970
 * @param missingRanks the ranks that this rank timed out waiting for; empty if it did not time out
 * @param entries the last operations, in the order of their calls
 */
public record FlightDump(
        String version,
        String job,
        String group,
        int rank,
        int worldSize,
        String backend,
        String host,
        long pid,
        long timeDumpedNs,
        String reason,
        List<Integer> missingRanks,
        List<FlightEntry> entries) {

    /** The version of the format that this class reads and writes. */
    public static final String VERSION = "2";

    private static final Gson GSON =
            new GsonBuilder()
                    .setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES)
                    .setPrettyPrinting()
                    .disableHtmlEscaping()
                    .create();

    /** Returns the collectives: sends and receives are numbered by pairs of ranks. */
    Stream<FlightEntry> collectives() {
        return entries.stream().filter(entry -> !entry.isMessage());
    }

    /** Returns whether the last collective failed. */
    boolean endsInFailure() {
        return collectives()
                .max(Comparator.comparingLong(FlightEntry::collectiveSeqId))
                .filter(entry -> entry.state() == State.FAILED)
                .isPresent();
    }

    /** {@return the number of the first operation that is still on record; 0 if there is none} */
    public long firstRecorded() {
        return collectives().mapToLong(FlightEntry::collectiveSeqId).min().orElse(0);
    }

    /** {@return the number of the last operation that was issued; 0 if there was none} */
    public long lastScheduled() {
        return last(entry -> true);
    }

    /**
     * {@return the number of the last operation on record whose execution began; 0 if there is
     * none}
     */
    public long lastStarted() {
        return last(entry -> entry.timeDiscoveredStartedNs() != null);
    }

    /**
     * {@return the number of the last operation on record that completed without a failure; 0 if
     * there is none}
     */
    public long lastCompleted() {
        return last(entry -> entry.state() == State.COMPLETED);
    }

    private long last(Predicate<FlightEntry> which) {
        return collectives().filter(which).mapToLong(FlightEntry::collectiveSeqId).max().orElse(0);
    }

    /** {@return the dump as JSON} */
    public String toJson() {
        return GSON.toJson(this);
    }

    /** Writes the JSON in pieces: the whole text is large, and memory may be short. */
    void writeJson(Appendable to) {
        GSON.toJson(this, to);
    }

    /**
     * Parses a dump.
     *
     * @throws IllegalArgumentException if the text is not a dump; the message says why
     */
    public static FlightDump parse(String json) {
        FlightDump dump;
        try {
            dump = GSON.fromJson(json, FlightDump.class);
        } catch (JsonParseException e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        }
        if (dump == null) {
            throw new IllegalArgumentException("the text is empty");
        }
        dump.check();
        return dump;
    }

    private void check() {
        if (!VERSION.equals(version)) {
            throw new IllegalArgumentException(
                    "version %s is not supported; this class reads version %s"
                            .formatted(version, VERSION));
        }
        require("job", job);
        require("group", group);
        require("backend", backend);
        require("reason", reason);
        require("missing_ranks", missingRanks);
        require("entries", entries);
        if (rank < 0 || rank >= worldSize) {
            throw new IllegalArgumentException(
                    "rank " + rank + " is out of range: the group has " + worldSize + " ranks");
        }
        for (FlightEntry entry : entries) {
            require("an entry", entry);
            entry.check();
        }
    }

    static void require(String name, Object value) {
        if (value == null) {
            throw new IllegalArgumentException(name + " is missing");
        }
    }

    /**
     * Reads a dump from a file.
     *
     * @throws IOException if the file cannot be read or is not a dump
     */
    public static FlightDump read(Path file) throws IOException {
        Required.argument("read: file", file);
        try {
            return parse(Files.readString(file));
        } catch (IllegalArgumentException e) {
            throw new IOException(file + " is not a flight record: " + e.getMessage(), e);
        } catch (CharacterCodingException e) {
            throw new IOException(file + " is not a flight record: it is not UTF-8 text", e);
        } catch (NoSuchFileException e) {
            throw new IOException("the file " + file + " does not exist", e);
        }
    }

    /**
     * Writes the dump to a file, atomically. Missing directories are created; an existing file is
     * replaced.
     */
    public void write(Path file) throws IOException {
        Required.argument("write: file", file);
        Path directory = file.toAbsolutePath().getParent();
        if (!Files.isDirectory(directory)) { // createDirectories() fails on a link to a directory.
            Files.createDirectories(directory);
        }
        Path part = Files.createTempFile(directory, "flight-", ".part");
        try {
            FileWrites.naming(
                    file,
                    () -> {
                        try (Writer json = Files.newBufferedWriter(part)) {
                            writeJson(json);
                        } catch (JsonIOException e) {
                            throw e.getCause() instanceof IOException cause
                                    ? cause
                                    : new IOException(e.getMessage(), e);
                        }
                    });
            Files.move(part, file, StandardCopyOption.REPLACE_EXISTING);
        } finally {
            Files.deleteIfExists(part);
        }
    }
}
