// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import java.util.Optional;

/**
 * Watches the processes of a group: those on this host, and other hosts by heartbeats through the
 * group's store. For backends whose library may wait forever for a process that has died. Created
 * by {@link GroupContext#watchPeers}. Thread-safe.
 */
public interface PeerWatch extends AutoCloseable {

    /**
     * {@return an error message for a rank whose process on this host has died, or for another host
     * that has; empty if all run} Checks at most every 100 ms.
     */
    Optional<String> dead();

    /** Tells other hosts that this rank leaves in order, so that its silence is no failure. */
    @Override
    void close();
}
