// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.time.Duration;

/** Blocks the host until a work has ended, even with {@code optBlockingWait(false)}. */
final class HostWait {

    private static final Duration ENDLESS = Duration.ofSeconds(Long.MAX_VALUE);

    private HostWait() {}

    /** Blocks until the operation has ended; its own timeout bounds the wait. */
    static void await(Work work) {
        work.await(ENDLESS);
    }
}
