// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.nativeops.host.LongCalls;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Frees resources of destroyed groups in the background. The driver and NCCL may wait for all
 * kernels of a GPU before they free its memory. Such a kernel may belong to another group and wait
 * for a rank that waits for the destroying thread. So freeing on the destroying thread could
 * deadlock.
 */
public final class Disposal {

    private static final Logger logger = LoggerFactory.getLogger(Disposal.class);
    private static final Duration PATIENCE = Duration.ofMillis(200); // suffices on an idle GPU
    private static final Set<Thread> RUNNING = ConcurrentHashMap.newKeySet();

    private Disposal() {}

    /**
     * Frees resources on a thread of {@link LongCalls}. Returns when they are free, at the latest
     * after 200 ms. Messages name the resources.
     */
    public static void run(String what, Runnable free) {
        Thread thread =
                LongCalls.start(
                        "collectives-free " + what,
                        () -> {
                            try {
                                free.run();
                            } catch (RuntimeException | Error e) {
                                logger.warn("could not free {}", what, e);
                            }
                        });
        RUNNING.removeIf(before -> !before.isAlive());
        RUNNING.add(thread);
        if (!LongCalls.join(List.of(thread), PATIENCE)) {
            logger.debug("still freeing {}", what);
        }
    }

    /**
     * Waits until all resources given to {@link #run} are free, at most for a time. Returns whether
     * they are free.
     */
    public static boolean await(Duration patience) {
        return LongCalls.join(RUNNING, patience);
    }
}
