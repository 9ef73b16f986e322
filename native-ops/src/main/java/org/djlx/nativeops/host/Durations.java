// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.time.Duration;

/** Formats durations for messages and logs. */
public final class Durations {

    private static final long NANOS_PER_MILLI = 1_000_000;
    private static final long NANOS_PER_MICRO = 1_000;

    private Durations() {}

    /**
     * {@return a duration, not negative, with a unit that suits its size, for example {@code 30
     * ms}, {@code 1.5 s}, {@code 30 min} or {@code 1 h 3 min}}
     */
    public static String text(Duration duration) {
        long seconds = duration.toSeconds();
        if (seconds == 0) {
            long nanos = duration.toNanos();
            return nanos >= NANOS_PER_MILLI
                    ? decimal(nanos, 6) + " ms"
                    : nanos >= NANOS_PER_MICRO ? decimal(nanos, 3) + " µs" : nanos + " ns";
        }
        if (seconds < 60) {
            return decimal(duration.toMillis(), 3) + " s";
        }
        return seconds < 3600
                ? units(seconds / 60, "min", seconds % 60, "s")
                : units(seconds / 3600, "h", seconds % 3600 / 60, "min");
    }

    /** Returns {@code value / 10^digits}, rounded to three places, without trailing zeros. */
    private static String decimal(long value, int digits) {
        return BigDecimal.valueOf(value, digits)
                .setScale(3, RoundingMode.HALF_UP)
                .stripTrailingZeros()
                .toPlainString();
    }

    private static String units(long large, String largeUnit, long small, String smallUnit) {
        return large + " " + largeUnit + (small == 0 ? "" : " " + small + " " + smallUnit);
    }
}
