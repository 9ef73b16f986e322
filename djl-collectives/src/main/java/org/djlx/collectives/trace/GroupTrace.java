/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.trace;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.Operation;
import org.djlx.collectives.OperationTrace;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A group's side of its {@link FlightRecorder}: what it issues on one rank is put on record, and
 * the record is written to a file when that fails. For the group alone; users have the recorder.
 */
public final class GroupTrace {

    private static final Logger logger = LoggerFactory.getLogger(GroupTrace.class);

    private final FlightRecorder recorder;
    private final FailureDumps dumps = new FailureDumps(this::write);
    private final Runnable unregister;
    private long recorded; // guarded by the group's lock for issuing

    GroupTrace(FlightRecorder recorder, Runnable unregister) {
        this.recorder = recorder;
        this.unregister = unregister;
    }

    /**
     * Begins to record a group, and shows it over JMX until this is closed.
     *
     * @param context the group
     * @param backend the name of its backend
     * @param job what all groups of the job have in common that come from one
     * @return the trace
     */
    public static GroupTrace open(GroupContext context, String backend, String job) {
        FlightRecorder recorder = new FlightRecorder(context, backend, job, size());
        return new GroupTrace(recorder, FlightRecorderBean.register(recorder));
    }

    private static int size() {
        int size = Integer.getInteger(FlightRecorder.SIZE_PROPERTY, FlightRecorder.DEFAULT_SIZE);
        if (size < 1) {
            logger.warn("{} must be positive, not {}", FlightRecorder.SIZE_PROPERTY, size);
            return FlightRecorder.DEFAULT_SIZE;
        }
        return size;
    }

    /**
     * Returns where the operations are on record.
     *
     * @return the recorder
     */
    public FlightRecorder recorder() {
        return recorder;
    }

    /**
     * Returns what all groups of the job have in common that come from one.
     *
     * @return the job's id
     */
    public String job() {
        return recorder.job();
    }

    /**
     * Records an operation that is about to be handed to the backend. To be called by one thread at
     * a time.
     *
     * @param operation the operation
     * @return what is to be told how it goes
     */
    public OperationTrace scheduled(Operation operation) {
        FlightRecord record = new FlightRecord(this, operation, ++recorded);
        recorder.put(recorded, record);
        return record;
    }

    void failed(Operation operation, Throwable failure) {
        // After a mismatch the group goes on.
        if (!(failure instanceof CollectiveMismatchException)) {
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
            Path file = FlightFiles.file(recorder.group(), recorder.rank());
            recorder.dump(message, missing).write(file);
            logger.error("{}; the rank's last operations are in {}", message, file);
        } catch (IOException | RuntimeException e) {
            // The operation has failed; that its record is lost must not hide why.
            logger.warn("cannot write the flight record of {}", recorder, e);
        }
    }

    /** Ends the view over JMX, and that failures, which are now the caller's own, are dumped. */
    public void close() {
        dumps.close();
        unregister.run();
    }
}
