// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.time.Duration;
import org.djlx.collectives.Work;

/** Blocks the host until a work has ended, even with {@code optBlockingWait(false)}. */
public final class HostWait {

    private static final Duration ENDLESS = Duration.ofSeconds(Long.MAX_VALUE);

    private HostWait() {}

    /** Blocks until the operation has ended; its own timeout bounds the wait. */
    public static void await(Work work) {
        work.await(ENDLESS);
    }
}
