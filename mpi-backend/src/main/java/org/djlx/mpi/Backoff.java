// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.spi.cpu.PeerStates;

/**
 * How a thread pauses between polls of MPI, which wakes no thread. It spins if every rank of this
 * host has a core, then yields, then sleeps. Used by one thread at a time.
 */
final class Backoff {

    private static final int SPINS = ranksPerCore() == 1 ? 200 : 0;
    private static final long YIELD_NANOS = 1_000_000L * ranksPerCore();
    private static final long SLEEP_NANOS = 50_000;
    private static final int MAX_SLEEPS = 20; // as a factor of the first sleep

    private int polls;
    private int sleeps;
    private long start;

    /** Begins a wait, or begins it again because something has arrived. */
    void reset() {
        polls = 0;
        sleeps = 0;
    }

    /** Pauses for longer and longer; at most a time in ns. */
    void pause(long most) {
        polls++;
        if (polls <= SPINS) {
            Thread.onSpinWait();
            return;
        }
        if (polls == SPINS + 1) {
            start = System.nanoTime();
        }
        if (System.nanoTime() - start < YIELD_NANOS) {
            Thread.yield();
            return;
        }
        sleeps = Math.min(sleeps + 1, MAX_SLEEPS);
        LockSupport.parkNanos(this, Math.min(most, sleeps * SLEEP_NANOS));
    }

    /** Returns whether the wait sleeps, so that slow checks no longer matter. */
    boolean isLong() {
        return polls > SPINS;
    }

    private static int ranksPerCore() {
        return PeerStates.ranksPerCore(localRanks());
    }

    /** Returns the number of ranks on this host, as the launcher tells; 0 if it does not. */
    static int localRanks() {
        String local = LaunchEnvironment.current().get("LOCAL_WORLD_SIZE");
        try {
            return local == null ? 0 : Integer.parseInt(local);
        } catch (NumberFormatException e) {
            return 0;
        }
    }
}
