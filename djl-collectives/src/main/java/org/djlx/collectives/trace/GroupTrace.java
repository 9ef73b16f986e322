// SPDX-License-Identifier: Apache-2.0
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
 * Records the operations of a group on one rank in its {@link FlightRecorder}, and writes the
 * record to a file when an operation fails. For {@code ProcessGroup} only; users read the recorder.
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

    /** Receives the dump of a failed group. */
    interface Sink {
        void write(FlightDump dump) throws IOException;
    }

    GroupTrace(FlightRecorder recorder, Sink sink, String file, Runnable unregister) {
        this.recorder = recorder;
        this.sink = sink;
        this.file = file;
        this.unregister = unregister;
    }

    /** Starts recording a group, and registers its recorder with JMX until this is closed. */
    public static GroupTrace open(GroupContext context, String backend, String job) {
        FlightRecorder recorder = new FlightRecorder(context, backend, job, size());
        Path file = FlightRecorder.file(recorder.group(), recorder.rank());
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
        String value = System.getProperty(FlightRecorder.SIZE_PROPERTY);
        int size =
                Integer.getInteger(
                        FlightRecorder.SIZE_PROPERTY,
                        value == null ? FlightRecorder.DEFAULT_SIZE : 0);
        if (size < 1) {
            logger.warn(
                    "{} must be a number, 1 or more, not {}; the default is used",
                    FlightRecorder.SIZE_PROPERTY,
                    value);
            return FlightRecorder.DEFAULT_SIZE;
        }
        return size;
    }

    /** {@return the recorder} */
    public FlightRecorder recorder() {
        return recorder;
    }

    /** {@return the id of the job} */
    public String job() {
        return recorder.job();
    }

    /** Records an operation before it is handed to the backend. Not thread-safe. */
    public OperationTrace scheduled(Operation operation) {
        FlightRecord record = new FlightRecord(this, operation, ++recorded);
        recorder.put(recorded, record);
        return record;
    }

    /**
     * Schedules writing the record after an operation failed. Returns the file; null if no file is
     * written.
     */
    String failed(Operation operation, Throwable failure, String message) {
        if (closed) {
            return null;
        }
        if (isHarmless(failure)) {
            // The program may never wait for the work. Of a collective, all ranks have the message.
            if (operation.type().isPointToPoint() || recorder.rank() == 0) {
                logger.warn("{}", message);
            }
            return null;
        }
        hasFailed = true;
        try {
            boolean isMessage = operation.type().isPointToPoint();
            DumpWriter.execute(() -> dumps.failed(new Failure(failure, message, isMessage)));
            return file;
        } catch (RuntimeException | Error e) {
            DumpWriter.lost("the flight record", e);
            return null;
        }
    }

    /** Returns whether this is a mismatch that leaves the group usable; its message is enough. */
    private static boolean isHarmless(Throwable failure) {
        return failure instanceof CollectiveMismatchException mismatch && !mismatch.isGroupBroken();
    }

    private void write(Failure failure) {
        List<Integer> missing =
                failure.cause() instanceof CollectiveTimeoutException timeout
                        ? timeout.missingRanks()
                        : List.of();
        try {
            sink.write(recorder.dump(failure.message(), missing));
        } catch (IOException | RuntimeException | Error e) {
            // A lost record must not hide the operation's failure.
            DumpWriter.lost("the flight record in " + file, e);
        }
    }

    /** Unregisters from JMX, writes a pending failure and stops recording failures. */
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
