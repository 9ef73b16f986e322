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
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.OperationTrace;
import org.djlx.collectives.trace.FailureDumps.Failure;
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
    private final Sink sink;
    private final String file;
    private final Runnable unregister;
    private volatile boolean hasFailed;
    private volatile boolean closed;
    private long recorded; // guarded by the group's lock for issuing

    /** Takes the record of a group that failed. */
    interface Sink {
        void write(FlightDump dump) throws IOException;
    }

    GroupTrace(FlightRecorder recorder, Sink sink, String file, Runnable unregister) {
        this.recorder = recorder;
        this.sink = sink;
        this.file = file;
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
        Path file = FlightFiles.file(recorder.group(), recorder.rank());
        Sink sink =
                dump -> {
                    dump.write(file);
                    logger.error("{}; the rank's last operations are in {}", dump.reason(), file);
                };
        DumpWriter.start();
        return new GroupTrace(
                recorder, sink, file.toString(), FlightRecorderBean.register(recorder));
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

    /**
     * Has the record written, as an operation has failed.
     *
     * @return the file in which the record will be; null if it need not be written
     */
    String failed(Operation operation, Throwable failure, String message) {
        if (closed) {
            return null;
        }
        if (isHarmless(failure)) {
            logger.warn("{}", message); // Perhaps nobody awaits it.
            return null;
        }
        hasFailed = true;
        try {
            try {
                report(operation, failure, message);
            } catch (OutOfMemoryError e) {
                DumpWriter.release();
                report(operation, failure, message);
            }
            return file;
        } catch (RuntimeException | Error e) {
            DumpWriter.lost("the flight record", e);
            return null;
        }
    }

    /** The group goes on, and what each rank called stands in the error. */
    private static boolean isHarmless(Throwable failure) {
        return failure instanceof CollectiveMismatchException mismatch && !mismatch.isGroupBroken();
    }

    private void report(Operation operation, Throwable failure, String message) {
        boolean isMessage = operation.type().isPointToPoint();
        DumpWriter.execute(() -> dumps.failed(new Failure(failure, message, isMessage)));
    }

    private void write(Failure failure) {
        try {
            try {
                writeOnce(failure);
            } catch (IOException | OutOfMemoryError e) {
                DumpWriter.release();
                writeOnce(failure);
            }
        } catch (IOException | RuntimeException | Error e) {
            // The operation has failed; that its record is lost must not hide why.
            DumpWriter.lost("the flight record, which should have gone to " + file, e);
        } finally {
            DumpWriter.replenish();
        }
    }

    private void writeOnce(Failure failure) throws IOException {
        List<Integer> missing =
                failure.cause() instanceof CollectiveTimeoutException timeout
                        ? timeout.missingRanks()
                        : List.of();
        sink.write(recorder.dump(failure.message(), missing));
    }

    /** Ends the view over JMX, and that failures, which are now the caller's own, are dumped. */
    public void close() {
        closed = true;
        unregister.run();
        if (hasFailed) {
            try {
                DumpWriter.execute(dumps::close);
                DumpWriter.flush();
            } catch (RuntimeException | Error e) {
                DumpWriter.lost("the flight record of the last failure", e);
            }
        }
    }
}
