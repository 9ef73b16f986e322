// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Work;

/**
 * Blocks the host until a work has ended, even with {@code optBlockingWait(false)}: for calls of
 * several works.
 */
public final class HostWait {

    private static final Duration ENDLESS = Duration.ofSeconds(Long.MAX_VALUE);

    private HostWait() {}

    /**
     * Blocks until the operation has ended; its own timeout bounds the wait. An interrupt breaks
     * the group: the other ranks would wait for the next work of the call.
     */
    public static void await(RankGroup group, Work work) {
        try {
            work.await(ENDLESS);
        } catch (CollectiveException e) {
            if (Thread.currentThread().isInterrupted()) {
                group.abort(e);
            }
            throw e;
        }
    }
}
