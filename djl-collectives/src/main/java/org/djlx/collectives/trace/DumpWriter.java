/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
 * The thread that writes the records of groups that fail; one for the whole JVM. So whoever reports
 * a failure waits for no disk, and what goes wrong with the report cannot end the thread that the
 * other operations need. A JVM that ends waits a while for what is to be written.
 *
 * <p>A report may be made when memory or descriptors are used up. Hence what it needs is loaded
 * when the first group is created, and some memory and a descriptor are put by for it.
 */
final class DumpWriter {

    private static final Logger logger = LoggerFactory.getLogger(DumpWriter.class);
    private static final Duration PATIENCE = Duration.ofSeconds(5);

    /** The name of the group that fails when it all is done once; no other group has it. */
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
        } catch (OutOfMemoryError e) { // There may be no more threads, for now.
            lost("what may fail from now on", e);
        }
    }

    private DumpWriter() {}

    private static Thread newThread(Runnable body) {
        Thread thread = new Thread(body, "flight-writer");
        thread.setDaemon(true);
        return thread;
    }

    /** Starts the thread, and loads what a report needs, if that was not done before. */
    static void start() {
        // Done when the class is initialised.
    }

    /** Does it all once, but for the file: a class that failed to be loaded never is. */
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

    /** Runs a task on the thread, after those before. */
    static void execute(Runnable task) {
        THREAD.execute(task);
    }

    /** Runs a task on the thread after some time, unless the JVM ends before. */
    static void executeAfter(Duration delay, Runnable task) {
        THREAD.schedule(task, delay.toMillis(), TimeUnit.MILLISECONDS);
    }

    /** Waits until the tasks have been run that are to be run now; not for ever. */
    static void flush() {
        try {
            THREAD.submit(() -> {}).get(PATIENCE.toMillis(), TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException e) {
            logger.warn("flight records are still being written after {}", PATIENCE, e);
        }
    }

    /** Frees what was put by, for a report that failed for want of it and is tried once more. */
    static synchronized void release() {
        memory = null;
        if (descriptor != null) {
            try {
                descriptor.close();
            } catch (IOException e) {
                logger.debug("cannot close what was put by", e);
            }
            descriptor = null;
        }
    }

    /** Puts by what {@link #release} freed, as far as there is any. */
    static synchronized void replenish() {
        try {
            if (memory == null) {
                memory = new byte[RESERVE_BYTES];
            }
            if (descriptor == null) {
                descriptor = Files.newInputStream(Path.of("/dev/null"));
            }
        } catch (OutOfMemoryError | IOException e) {
            logger.debug("there is nothing to put by", e);
        }
    }

    /**
     * Notes that part of a report is lost, if that is possible. It must not reach the thread on
     * which other operations depend, least of all when memory is used up.
     */
    static void lost(String what, Throwable reason) {
        try {
            logger.warn("cannot record {}", what, reason);
        } catch (RuntimeException | Error e) {
            // There is nothing left to say it with.
        }
    }
}
