/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.time.Duration;
import java.util.Objects;

/** What every backend can be told about a group; a backend may define a subclass with more. */
public class BackendOptions {

    /** How long an operation waits for the other ranks unless told otherwise; c10d's default. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(30);

    private final Duration timeout;

    /**
     * Creates options.
     *
     * @param timeout how long an operation waits for the other ranks
     */
    public BackendOptions(Duration timeout) {
        this.timeout = Objects.requireNonNull(timeout, "timeout");
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException("the timeout must be positive: " + timeout);
        }
    }

    /**
     * Returns how long an operation waits for the other ranks.
     *
     * @return the timeout
     */
    public Duration timeout() {
        return timeout;
    }
}
