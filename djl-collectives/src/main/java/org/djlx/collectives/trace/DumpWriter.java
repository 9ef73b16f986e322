// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.io.IOException;
import java.io.InputStream;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OperationTrace;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The JVM's one thread that writes the flight records of failed groups. The thread that reports a
 * failure does not wait for the disk, and an error while writing cannot end a thread that other
 * operations need. At JVM exit a shutdown hook waits for pending writes.
 *
 * <p>Memory or file descriptors may be used up when a group fails. Therefore the classes that
 * writing needs are loaded when the first group is created, and some memory and one descriptor are
 * held in reserve.
 */
final class DumpWriter {

    private static final Logger logger = LoggerFactory.getLogger(DumpWriter.class);
    private static final Duration PATIENCE = Duration.ofSeconds(5);

    /** The group name of the rehearsal, which loads all classes; no other group has it. */
    static final String REHEARSAL = "rehearsal of a failure";

    private static final int RESERVE_BYTES = 1 << 20; // A full ring takes about half of it.

    private static final ScheduledThreadPoolExecutor THREAD =
            new ScheduledThreadPoolExecutor(1, DumpWriter::newThread);

    // Guarded by the class.
    private static byte[] memory;
    private static InputStream descriptor;

    static {
        replenish();
        try {
            THREAD.execute(DumpWriter::rehearse);
            Runtime.getRuntime().addShutdownHook(new Thread(DumpWriter::flush, "flight-flush"));
        } catch (IllegalStateException e) {
            logger.debug("a group is created while the JVM ends", e);
        } catch (OutOfMemoryError e) { // The system may refuse threads for the moment.
            lost("failures from now on", e);
        }
    }

    private DumpWriter() {}

    private static Thread newThread(Runnable body) {
        Thread thread = new Thread(body, "flight-writer");
        thread.setDaemon(true);
        return thread;
    }

    /** Starts the thread and loads the classes that writing needs; later calls do nothing. */
    static void start() {
        // The class initialiser does it.
    }

    /** Writes one record without a file. This loads every class while memory is left. */
    static void rehearse() {
        try (Store store = new HashStore()) {
            BackendOptions options = new BackendOptions(Duration.ofSeconds(1));
            GroupContext context = new GroupContext(REHEARSAL, 0, 1, store, options, null);
            FlightRecorder recorder = new FlightRecorder(context, "", "", 1);
            GroupTrace trace =
                    new GroupTrace(
                            recorder, dump -> dump.writeJson(Writer.nullWriter()), "", () -> {});
            OperationTrace operation = trace.scheduled(context.joining());
            operation.started();
            operation.ended(new CollectiveTimeoutException("", List.of(0)));
        }
        new SecureRandom().nextLong(); // For the names of temporary files; keeps its source open.
    }

    /** Runs a task on the thread, after all earlier tasks. */
    static void execute(Runnable task) {
        THREAD.execute(task);
    }

    /** Runs a task on the thread after a delay, unless the JVM ends before. */
    static void executeAfter(Duration delay, Runnable task) {
        THREAD.schedule(task, delay.toMillis(), TimeUnit.MILLISECONDS);
    }

    /** Waits for the tasks that are due, at most {@link #PATIENCE}. */
    static void flush() {
        try {
            THREAD.submit(() -> {}).get(PATIENCE.toMillis(), TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException e) {
            logger.warn(
                    "flight records are still being written after {}; they may be lost",
                    PATIENCE,
                    e);
        }
    }

    /** Frees the reserve. Called before a failed write is repeated. */
    static synchronized void release() {
        memory = null;
        if (descriptor != null) {
            try {
                descriptor.close();
            } catch (IOException e) {
                logger.debug("cannot close the reserved descriptor", e);
            }
            descriptor = null;
        }
    }

    /** Restores the reserve, as far as memory and descriptors allow. */
    static synchronized void replenish() {
        try {
            if (memory == null) {
                memory = new byte[RESERVE_BYTES];
            }
            if (descriptor == null) {
                descriptor = Files.newInputStream(Path.of("/dev/null"));
            }
        } catch (OutOfMemoryError | IOException e) {
            logger.debug("no memory or descriptor to reserve", e);
        }
    }

    /**
     * Logs that part of a record is lost. Never throws: other operations depend on the calling
     * thread, even when memory is used up.
     */
    static void lost(String what, Throwable reason) {
        try {
            logger.warn("cannot record {}", what, reason);
        } catch (RuntimeException | Error e) {
            // Logging failed too, because memory is used up.
        }
    }
}
