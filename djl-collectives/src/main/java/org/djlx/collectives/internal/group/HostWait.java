// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Work;

/** Blocks the host until a work has ended, even with {@code optBlockingWait(false)}. */
public final class HostWait {

    private static final Duration ENDLESS = Duration.ofSeconds(Long.MAX_VALUE);

    private HostWait() {}

    /** Blocks until the operation has ended; its own timeout bounds the wait. */
    public static void await(Work work) {
        work.await(ENDLESS);
    }

    /**
     * As {@link #await(Work)}, before another work of the same call. An interrupt breaks the group:
     * the other ranks would wait for that work.
     */
    public static void await(RankGroup group, Work work) {
        try {
            await(work);
        } catch (CollectiveException e) {
            if (Thread.currentThread().isInterrupted()) {
                group.abort(e);
            }
            throw e;
        }
    }
}
