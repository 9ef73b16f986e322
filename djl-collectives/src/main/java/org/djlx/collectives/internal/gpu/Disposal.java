/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.gpu;

import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Frees what destroyed groups held, beside the threads that destroy them. The driver, and NCCL, may
 * wait for all that the GPU runs when its memory is freed; and that may be an operation of another
 * group, which waits for ranks that wait for this one. Internal: for backends on GPUs.
 */
public final class Disposal {

    private static final Logger logger = LoggerFactory.getLogger(Disposal.class);
    // Enough if nothing is in the way.
    private static final Duration MOMENT = Duration.ofMillis(200);
    private static final Set<Thread> RUNNING = ConcurrentHashMap.newKeySet();

    private Disposal() {}

    /**
     * Runs something that frees; returns when that is done, or after a fifth of a second while it
     * goes on, by {@link LongCalls}.
     *
     * @param what what is freed, for messages
     * @param free frees it
     */
    public static void run(String what, Runnable free) {
        Thread thread =
                LongCalls.start(
                        "collectives-free " + what,
                        () -> {
                            try {
                                free.run();
                            } catch (RuntimeException | Error e) {
                                logger.warn("{} could not be freed", what, e);
                            }
                        });
        RUNNING.removeIf(before -> !before.isAlive());
        RUNNING.add(thread);
        if (!LongCalls.join(List.of(thread), MOMENT)) {
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
        return LongCalls.join(RUNNING, patience);
    }
}
