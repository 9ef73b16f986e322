// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Threads for calls of NCCL and the driver that may wait for other ranks or GPUs. The JVM's exit
 * waits up to 2 s for them. Then the process exits without unloading libraries because a thread
 * inside an unloaded library would crash.
 */
public final class LongCalls {

    private static final Logger logger = LoggerFactory.getLogger(LongCalls.class);
    private static final Duration EXIT_PATIENCE = Duration.ofSeconds(2);
    private static final Set<Thread> RUNNING = ConcurrentHashMap.newKeySet();

    static {
        try {
            Runtime.getRuntime().addShutdownHook(new Thread(LongCalls::exit, "collectives-exit"));
        } catch (IllegalStateException e) {
            logger.debug("no shutdown hook: the JVM is exiting", e);
        }
    }

    private LongCalls() {}

    public static Thread start(String name, Runnable calls) {
        Thread thread =
                new Thread(
                        () -> {
                            try {
                                calls.run();
                            } finally {
                                RUNNING.remove(Thread.currentThread());
                            }
                        },
                        name);
        thread.setDaemon(true);
        RUNNING.add(thread);
        thread.start();
        return thread;
    }

    /**
     * Waits for threads to end, at most for a time, and returns whether all have ended. An
     * interrupt does not end the wait; the interrupt flag is kept.
     */
    public static boolean join(Iterable<Thread> threads, Duration patience) {
        long end = System.nanoTime() + patience.toNanos();
        boolean interrupted = false;
        boolean all = true;
        for (Thread thread : threads) {
            long left = end - System.nanoTime();
            while (thread.isAlive() && left > 0) {
                try {
                    thread.join(1 + left / 1_000_000);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
                left = end - System.nanoTime();
            }
            all &= !thread.isAlive();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return all;
    }

    private static void exit() {
        if (!join(RUNNING, EXIT_PATIENCE)) {
            ProcessExit.skipLibraries();
        }
    }
}
