/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.trace.FlightDump;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The last operations of one rank of a group; the counterpart of c10d's flight recorder.
 *
 * <p>Always on. It keeps the last {@value #DEFAULT_SIZE} operations, or as many as the system
 * property {@value #SIZE_PROPERTY} says, and allocates nothing when one is recorded. When an
 * operation fails, a timeout included but not a mismatch, each rank that notices writes what it has
 * to a file, over what was there: at once, above all when the group breaks. If more fails in the
 * next seconds, such as messages, which leave the group usable, it writes for the last of them when
 * these have passed or the group is destroyed. It does not for what fails because the group is
 * broken. Where, is logged: {@code flight-GROUP-rankN-pidP.json} in the directory given by the
 * system property {@value #DIRECTORY_PROPERTY}, or else by the environment variable {@value
 * #DIRECTORY_VARIABLE}, or else {@code java.io.tmpdir}. The record can also be had at any time,
 * here and over JMX ({@link FlightRecorderMXBean}). {@link
 * org.djlx.collectives.trace.FlightAnalysis} compares the records of all ranks.
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

    private static final Logger logger = LoggerFactory.getLogger(FlightRecorder.class);

    private final GroupContext context;
    private final String backend;
    private final FlightSlot[] ring;
    private long recorded; // guarded by the group's lock for issuing
    private final FailureDumps dumps = new FailureDumps(this::write);
    private Runnable unregister = () -> {};

    FlightRecorder(GroupContext context, String backend, int size) {
        this.context = context;
        this.backend = backend;
        ring = new FlightSlot[size];
        for (int i = 0; i < size; i++) {
            ring[i] = new FlightSlot();
        }
    }

    /** Creates the recorder of a group and shows it over JMX until it is closed. */
    static FlightRecorder open(GroupContext context, String backend) {
        FlightRecorder recorder = new FlightRecorder(context, backend, size());
        recorder.unregister = FlightRecorderBean.register(recorder);
        return recorder;
    }

    private static int size() {
        int size = Integer.getInteger(SIZE_PROPERTY, DEFAULT_SIZE);
        if (size < 1) {
            logger.warn("{} must be positive, not {}", SIZE_PROPERTY, size);
            return DEFAULT_SIZE;
        }
        return size;
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

    String backend() {
        return backend;
    }

    /** Records an operation that is about to be handed to the backend. Called one at a time. */
    void scheduled(Operation operation) {
        long id = ++recorded;
        operation.recorder = this;
        operation.recordId = id;
        operation.slot = ring[(int) (id % ring.length)];
        operation.slot.schedule(operation);
    }

    /** Forgets an operation that the backend did not take. */
    void withdrawn(Operation operation) {
        operation.slot.withdraw(operation);
    }

    /** Returns the time since the operation was issued, in nanoseconds. */
    long started(Operation operation) {
        return operation.slot.start(operation);
    }

    void ended(Operation operation, Throwable failure) {
        operation.slot.end(operation, failure);
        // After a mismatch the group goes on.
        if (failure != null && !(failure instanceof CollectiveMismatchException)) {
            dumps.failed(failure, operation.type().isPointToPoint());
        }
    }

    private void write(Throwable failure) {
        List<Integer> missing =
                failure instanceof CollectiveTimeoutException timeout
                        ? timeout.missingRanks()
                        : List.of();
        String message = failure.getMessage() == null ? failure.toString() : failure.getMessage();
        try {
            Path file = FlightSnapshot.file(group(), rank());
            FlightSnapshot.take(this, ring, message, missing).write(file);
            logger.error("{}; the rank's last operations are in {}", message, file);
        } catch (IOException | RuntimeException e) {
            // The operation has failed; that its record is lost must not hide why.
            logger.warn("cannot write the flight record of {}", this, e);
        }
    }

    /**
     * Returns the record as it is now.
     *
     * @return the last operations
     */
    public FlightDump dump() {
        return FlightSnapshot.take(this, ring, "requested", List.of());
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

    /** Ends the view over JMX, and that failures, which are now the caller's own, are dumped. */
    void close() {
        dumps.close();
        unregister.run();
    }

    @Override
    public String toString() {
        return "FlightRecorder(" + group() + ", rank " + rank() + " of " + worldSize() + ")";
    }
}
