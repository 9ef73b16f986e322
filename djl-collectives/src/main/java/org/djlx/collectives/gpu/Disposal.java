/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.gpu;

import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Frees what destroyed groups held, beside the threads that destroy them. When memory is freed that
 * other GPUs can reach, the driver waits for these GPUs; and they may run an operation of another
 * group that waits for the very rank that frees. Internal: for backends on GPUs.
 */
public final class Disposal {

    private static final Logger logger = LoggerFactory.getLogger(Disposal.class);
    // Enough if nothing is in the way.
    private static final Duration MOMENT = Duration.ofMillis(200);
    private static final Duration EXIT_PATIENCE = Duration.ofSeconds(2);
    private static final Set<Thread> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        try {
            // The libraries' own end must not meet with a thread that frees.
            Runtime.getRuntime()
                    .addShutdownHook(new Thread(() -> await(EXIT_PATIENCE), "collectives-exit"));
        } catch (IllegalStateException e) {
            logger.debug("the JVM is about to end", e);
        }
    }

    private Disposal() {}

    /**
     * Runs something that frees; returns when that is done, or after a fifth of a second while it
     * goes on. The JVM's exit waits up to two seconds for it.
     *
     * @param what what is freed, for messages
     * @param free frees it
     */
    public static void run(String what, Runnable free) {
        Thread thread =
                new Thread(
                        () -> {
                            try {
                                free.run();
                            } catch (RuntimeException | Error e) {
                                logger.warn("{} could not be freed", what, e);
                            } finally {
                                RUNNING.remove(Thread.currentThread());
                            }
                        },
                        "collectives-free " + what);
        thread.setDaemon(true);
        RUNNING.add(thread);
        thread.start();
        if (!join(thread, MOMENT)) {
            logger.debug("{} is freed later", what);
        }
    }

    /**
     * Waits until everything is freed.
     *
     * @param patience how long
     * @return whether it is
     */
    public static boolean await(Duration patience) {
        long end = System.nanoTime() + patience.toNanos();
        for (Thread thread : RUNNING) {
            if (!join(thread, Duration.ofNanos(end - System.nanoTime()))) {
                return false;
            }
        }
        return true;
    }

    private static boolean join(Thread thread, Duration patience) {
        try {
            thread.join(Math.max(1, patience.toMillis()));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return !thread.isAlive();
    }
}
