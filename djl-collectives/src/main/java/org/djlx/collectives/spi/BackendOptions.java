/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.spi;

import java.time.Duration;

/** What every backend can be told about a group; a backend may define a subclass with more. */
public class BackendOptions {

    /** How long an operation waits for the other ranks unless told otherwise; c10d's default. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(30);

    /** After how long a wait the log tells of it unless told otherwise: 60 seconds. */
    public static final Duration DEFAULT_WARN_AFTER = Duration.ofSeconds(60);

    // More than anybody waits; twice this in nanoseconds is still a long.
    private static final Duration LONGEST_TIMEOUT = Duration.ofNanos(Long.MAX_VALUE / 4);

    private final Duration timeout;
    private final Duration warnAfter;

    /**
     * Creates options, with {@link #DEFAULT_WARN_AFTER}. With {@code shm} the timeout of an
     * operation counts from when it begins to run, after those issued before it; that of a message
     * counts from the call.
     *
     * @param timeout how long an operation waits for the other ranks; more than 73 years are taken
     *     for that
     */
    public BackendOptions(Duration timeout) {
        this(timeout, DEFAULT_WARN_AFTER);
    }

    /**
     * Creates options.
     *
     * @param timeout how long an operation waits for the other ranks
     * @param warnAfter after how long a wait the log tells of it; see {@link #warnAfter}
     */
    public BackendOptions(Duration timeout, Duration warnAfter) {
        this.timeout = checked(timeout, "timeout");
        this.warnAfter = checked(warnAfter, "time after which to warn");
    }

    /** Returns a timeout that fits its use, or throws. */
    public static Duration checked(Duration timeout) {
        return checked(timeout, "timeout");
    }

    private static Duration checked(Duration timeout, String what) {
        if (timeout == null) {
            throw new IllegalArgumentException("the " + what + " must not be null");
        }
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException("the " + what + " must be positive: " + timeout);
        }
        return timeout.compareTo(LONGEST_TIMEOUT) < 0 ? timeout : LONGEST_TIMEOUT;
    }

    /**
     * Returns how long an operation waits for the other ranks.
     *
     * @return the timeout
     */
    public Duration timeout() {
        return timeout;
    }

    /**
     * Returns after how long a wait the log warns of an operation that waits for other ranks, once,
     * with those that are missing as far as they are known. Creating a group counts as one. A time
     * longer than the timeout means never.
     *
     * @return the time
     */
    public Duration warnAfter() {
        return warnAfter;
    }
}
