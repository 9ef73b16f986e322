// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.time.Duration;
import org.djlx.collectives.spi.Operation;

/**
 * The thread that has created the ranks of a local group. If it is the only one that calls, and
 * waits, it probably is to call for the other ranks afterwards, and would wait until the timeout.
 */
public final class CreatingThread {

    private static final Duration PATIENCE = Duration.ofSeconds(1);

    private static final String HINT =
            "; if thread %s, which created this group, is to call for the other ranks, too, it"
                    + " never will: call for each rank on a thread of its own, as"
                    + " ProcessGroups.run does";

    private final Thread thread = Thread.currentThread();
    private volatile boolean alone = true;

    /**
     * Warns of a long wait sooner, after {@link #PATIENCE}, if no other thread has called so far.
     */
    void called(Operation operation) {
        if (alone && Thread.currentThread() != thread) {
            alone = false;
        }
        if (alone) {
            operation.warningAfter(PATIENCE, HINT.formatted(thread.getName()));
        }
    }
}
