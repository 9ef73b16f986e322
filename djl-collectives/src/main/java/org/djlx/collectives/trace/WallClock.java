/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.trace;

import java.time.Instant;
import java.util.concurrent.TimeUnit;

/**
 * Turns times of {@link System#nanoTime} into nanoseconds since 1970. Recording so needs one clock
 * only, and the order of the times is right even if the wall clock is set in between.
 */
final class WallClock {

    // The same moment on both clocks.
    private final long wall = wallNanos();
    private final long nanos = System.nanoTime();

    private static long wallNanos() {
        Instant now = Instant.now();
        return TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano();
    }

    /** Returns when this was created. */
    long now() {
        return wall;
    }

    long at(long time) {
        return wall + (time - nanos);
    }
}
