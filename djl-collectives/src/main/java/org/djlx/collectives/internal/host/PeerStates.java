// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.util.ArrayList;
import java.util.List;
import java.util.function.IntPredicate;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.Operation;

/**
 * What one rank knows about its group: whether operations can run, and which ranks have left or
 * died. Also wakes ranks that sleep until a peer has changed something. Thread-safe.
 */
public interface PeerStates {

    /** Returns the rank that this object serves. */
    int rank();

    int worldSize();

    /**
     * Returns the exception with which a call must fail because the group is broken or being
     * destroyed; null if the call can run.
     */
    CollectiveException obstacle(Object call);

    /** Breaks the group, and announces that to the other ranks. The first reason stays. */
    void fail(CollectiveException reason);

    /** Describes why a rank no longer participates; null if it has not announced that. */
    String announcedEndOf(int peer);

    /** Describes the end of a rank's process; null if it is alive or that is unknown. */
    String deathOf(int peer);

    /** Adds the likely cause to the description of a rank's end. */
    String causeOf(String end);

    /** Returns how often to check a condition before sleeping; 0 if ranks share cores. */
    int spins();

    /** Wakes a rank, this one included. */
    void ring(int peer);

    /** Returns a value that the next {@link #ring} for this rank changes. */
    int prepareSleep();

    /** Sleeps while the value is unchanged, for at most a time in ns. */
    void sleep(int value, long nanos);

    /** Ends what {@link #prepareSleep} began. */
    void endSleep();

    /**
     * Checks a wait of this rank; logs it if it is long.
     *
     * @param isMissing whether this rank still waits for a rank
     * @param omission what the missing ranks did not do, such as {@code did not arrive}
     * @param ordered whether a rank that has left can no longer meet the condition; otherwise its
     *     data may still arrive
     * @param waited how long this rank has waited, in ns
     * @throws CollectiveException if the group is broken or being destroyed, this thread is
     *     interrupted, a missing rank has left, failed or died, or the operation has timed out
     */
    default void checkWait(
            Operation operation,
            IntPredicate isMissing,
            String omission,
            boolean ordered,
            long waited) {
        CollectiveException obstacle = obstacle(operation);
        if (obstacle != null) {
            throw obstacle;
        }
        if (Thread.currentThread().isInterrupted()) {
            throw GroupErrors.interrupted(operation, null);
        }
        boolean timedOut = waited >= operation.timeout().toNanos();
        // Reading process states from files is slow: not before every short sleep.
        boolean processes = waited >= Rendezvous.CHECK_NANOS || timedOut;
        List<Integer> missing = new ArrayList<>();
        for (int peer = 0; peer < worldSize(); peer++) {
            // Read the state before the condition: a rank may arrive and then leave.
            String end = announcedEndOf(peer);
            if (end == null && processes) {
                end = deathOf(peer);
            }
            if (!isMissing.test(peer)) {
                continue;
            }
            if (end != null && (ordered || !end.equals(GroupErrors.left(peer)))) {
                throw GroupErrors.gone(operation, rank(), causeOf(end));
            }
            missing.add(peer);
        }
        if (missing.isEmpty()) {
            return;
        }
        if (timedOut) {
            throw GroupErrors.timedOut(operation, rank(), missing, omission);
        }
        LongWaits.warnOnce(operation, rank(), missing, waited);
    }
}
