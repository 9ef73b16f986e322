// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import org.djlx.collectives.CollectiveException;

/**
 * What one rank knows about its group: whether operations can run, and which ranks have left or
 * died. Also wakes ranks that sleep until a peer has changed something. Thread-safe.
 */
public interface PeerStates {

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
}
