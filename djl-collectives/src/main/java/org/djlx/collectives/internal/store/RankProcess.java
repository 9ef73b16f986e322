// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import org.djlx.collectives.internal.host.Liveness;

/**
 * The process of a rank.
 *
 * @param host the host, see {@link Liveness#HOST}
 * @param pid the process id
 * @param startTime its start time, see {@link Liveness#startTime}
 */
public record RankProcess(String host, long pid, long startTime) {

    /** Returns this process. */
    static RankProcess own() {
        long pid = ProcessHandle.current().pid();
        return new RankProcess(Liveness.HOST, pid, Liveness.startTime(pid));
    }

    /** Returns whether the process has ended; false if it is on another host. */
    boolean hasDied() {
        return host.equals(Liveness.HOST) && !Liveness.isAlive(pid, startTime);
    }
}
