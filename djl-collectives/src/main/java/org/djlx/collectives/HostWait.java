/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.time.Duration;

/** Waits for works on the host, whatever a backend's options say of {@link Work#await()}. */
final class HostWait {

    private static final Duration ENDLESS = Duration.ofSeconds(Long.MAX_VALUE);

    private HostWait() {}

    /** Waits until the operation has ended; its own timeout ends it. */
    static void await(Work work) {
        work.await(ENDLESS);
    }
}
