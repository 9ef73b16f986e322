// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.time.Instant;
import java.util.concurrent.TimeUnit;

/**
 * Converts times of {@link System#nanoTime} to nanoseconds since 1970. The times stay in order even
 * if the wall clock is changed in between.
 */
final class WallClock {

    // One moment on both clocks.
    private final long wall = wallNanos();
    private final long nanos = System.nanoTime();

    private static long wallNanos() {
        Instant now = Instant.now();
        return TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano();
    }

    /** Returns the time of creation. */
    long now() {
        return wall;
    }

    long at(long time) {
        return wall + (time - nanos);
    }
}
