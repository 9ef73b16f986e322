// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The JVM's one thread that writes the flight records of failed groups. The thread that reports a
 * failure does not wait for the disk, and an error while writing cannot end a thread that other
 * operations need. At JVM exit a shutdown hook waits for pending writes.
 */
final class DumpWriter {

    private static final Logger logger = LoggerFactory.getLogger(DumpWriter.class);
    private static final Duration PATIENCE = Duration.ofSeconds(5);

    private static final ScheduledThreadPoolExecutor THREAD =
            new ScheduledThreadPoolExecutor(1, DumpWriter::newThread);

    static {
        try {
            Runtime.getRuntime().addShutdownHook(new Thread(DumpWriter::flush, "flight-flush"));
        } catch (IllegalStateException e) {
            logger.debug("a group is created while the JVM ends", e);
        }
    }

    private DumpWriter() {}

    private static Thread newThread(Runnable body) {
        Thread thread = new Thread(body, "flight-writer");
        thread.setDaemon(true);
        return thread;
    }

    /** Initialises the class while memory is left: {@link #lost} must not fail later. */
    static void start() {
        // The class initialiser does it.
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
