/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.time.Duration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Tells the log that ranks wait long for others, in one text whatever they wait in. */
public final class LongWaits {

    private static final Logger logger = LoggerFactory.getLogger(LongWaits.class);

    private LongWaits() {}

    /**
     * Logs a wait.
     *
     * @param call what waits: an operation, or another text that says what was called
     * @param whom whom it waits for, such as {@code rank 1}
     * @param waitedNanos how long it has waited
     * @param timeout when it gives up, and what else is to be said
     */
    public static void tell(Object call, String whom, long waitedNanos, Object timeout) {
        logger.warn(
                "{}: still waiting for {} after {} s; it gives up after {}",
                call,
                whom,
                Duration.ofNanos(waitedNanos).toSeconds(),
                timeout);
    }
}
