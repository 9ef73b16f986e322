/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.common;

import java.time.Duration;

/** Durations as people write them. */
public final class Durations {

    private Durations() {}

    /**
     * Returns a duration in its two largest units.
     *
     * @param duration the duration, rounded to seconds
     * @return for example {@code 3 s}, {@code 2 min 5 s} or {@code 1 h 3 min}
     */
    public static String text(Duration duration) {
        long seconds = Math.max(0, (duration.toMillis() + 500) / 1000);
        if (seconds < 60) {
            return seconds + " s";
        }
        return seconds < 3600
                ? seconds / 60 + " min " + seconds % 60 + " s"
                : seconds / 3600 + " h " + seconds % 3600 / 60 + " min";
    }
}
