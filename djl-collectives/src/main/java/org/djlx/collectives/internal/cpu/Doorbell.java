// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cpu;

/** Wakes ranks that sleep until a peer has changed something. */
public interface Doorbell {

    /** Wakes a rank, this one included. */
    void ring(int rank);

    /** Returns a value that the next {@link #ring} for this rank changes. */
    int prepareSleep();

    /** Sleeps while the value is unchanged, for at most a time in ns. */
    void sleep(int value, long nanos);

    /** Ends what {@link #prepareSleep} began. */
    void endSleep();
}
