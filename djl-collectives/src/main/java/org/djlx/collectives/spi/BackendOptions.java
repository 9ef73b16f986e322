// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import java.time.Duration;
import org.djlx.nativeops.host.Durations;

/** Options that all backends have. A backend may define a subclass with more options. */
public class BackendOptions {

    /** The default timeout: 30 minutes, as in c10d. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(30);

    /** The default time after which the log warns of a wait: 60 s. */
    public static final Duration DEFAULT_WARN_AFTER = Duration.ofSeconds(60);

    // 73 years; twice this in nanoseconds still fits a long.
    private static final Duration LONGEST_TIMEOUT = Duration.ofNanos(Long.MAX_VALUE / 4);

    private final Duration timeout;
    private final Duration warnAfter;

    /**
     * Creates options with {@link #DEFAULT_WARN_AFTER}. With {@code shm} and {@code mpi} a
     * collective's timeout counts from its start, which is after the end of the operations before
     * it; a message's timeout counts from the call.
     *
     * @param timeout how long an operation waits for the other ranks; positive, capped at 73 years
     */
    public BackendOptions(Duration timeout) {
        this(timeout, DEFAULT_WARN_AFTER);
    }

    /**
     * Creates options.
     *
     * @param timeout how long an operation waits for the other ranks
     * @param warnAfter after how long the log warns of a wait; see {@link #warnAfter}
     */
    public BackendOptions(Duration timeout, Duration warnAfter) {
        this.timeout = checked(timeout, "timeout");
        this.warnAfter = checked(warnAfter, "warnAfter time");
    }

    /**
     * Checks a timeout.
     *
     * @param timeout the timeout
     * @return the timeout, capped at 73 years
     * @throws IllegalArgumentException if it is null or not positive
     */
    public static Duration checked(Duration timeout) {
        return checked(timeout, "timeout");
    }

    private static Duration checked(Duration timeout, String what) {
        if (timeout == null) {
            throw new IllegalArgumentException("the " + what + " is null");
        }
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException(
                    "the " + what + " must be positive, but is " + Durations.text(timeout));
        }
        return timeout.compareTo(LONGEST_TIMEOUT) < 0 ? timeout : LONGEST_TIMEOUT;
    }

    /** {@return how long an operation waits for the other ranks} */
    public Duration timeout() {
        return timeout;
    }

    /**
     * {@return after how long the log warns of an operation that still waits for other ranks} The
     * warning appears once per operation and names the missing ranks if they are known. Creating a
     * group counts as an operation. A time longer than the timeout disables the warning.
     */
    public Duration warnAfter() {
        return warnAfter;
    }
}
