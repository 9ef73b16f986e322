// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.ArrayList;
import java.util.List;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the tensors of failed direct all-reduces, eager or in graphs: a late peer may still write
 * to them. They are released once all ranks have left the group. Thread-safe.
 */
final class LateWriters {

    private static final Logger logger = LoggerFactory.getLogger(LateWriters.class);

    // Releases of tensors that late peers may still write to; null once every rank has left.
    // Guarded by this.
    private List<Runnable> kept = new ArrayList<>();

    /**
     * Releases a tensor: at once, or when all ranks have left if a late peer is expected to write
     * to it.
     */
    void release(Runnable release, boolean expected) {
        if (!expected || !keep(release)) {
            release.run();
        }
    }

    private synchronized boolean keep(Runnable release) {
        return kept != null && kept.add(release);
    }

    /** Releases all tensors, now and later at once: all ranks have left. */
    void end() {
        List<Runnable> releases;
        synchronized (this) {
            releases = kept;
            kept = null;
        }
        for (Runnable release : releases) {
            try {
                release.run();
            } catch (RuntimeException e) {
                logger.warn("cannot free the memory of a failed operation", e);
            }
        }
    }
}
