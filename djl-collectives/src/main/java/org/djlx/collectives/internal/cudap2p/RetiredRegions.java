// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.host.HostSync;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Regions of destroyed groups, and of groups that could not be created, that peers may still write
 * to. A write to freed memory would break the peer's CUDA context. So a region is freed once all
 * peers have left the group or died, at the latest with the process.
 */
final class RetiredRegions {

    private static final Logger logger = LoggerFactory.getLogger(RetiredRegions.class);
    private static final List<Retired> RETIRED = new ArrayList<>();
    private static final long POLL_MILLIS = 250;

    private RetiredRegions() {}

    private record Retired(P2pRegion region, HostSync hosts, Runnable others) {}

    /**
     * Unmaps the memory of the peers, leaves the group and retires this rank's region. The hosts
     * are closed with it; {@code others} frees other memory that peers may write to, before the
     * region.
     */
    static void add(P2pRegion region, HostSync hosts, Runnable others) {
        free(region::closePeers);
        hosts.leave();
        synchronized (RETIRED) {
            RETIRED.add(new Retired(region, hosts, others));
            if (RETIRED.size() == 1) {
                Thread thread = new Thread(RetiredRegions::freeInTime, "cuda_p2p-free");
                thread.setDaemon(true);
                thread.start();
            }
        }
        free();
    }

    /** Frees regions as other processes leave; ends when none is left. */
    private static void freeInTime() {
        try {
            do {
                Thread.sleep(POLL_MILLIS);
                Disposal.run("P2P memory", RetiredRegions::free);
            } while (isAny());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static boolean isAny() {
        synchronized (RETIRED) {
            return !RETIRED.isEmpty();
        }
    }

    /** Runs one release; a failure does not keep the others from running. */
    private static void free(Runnable part) {
        try {
            part.run();
        } catch (RuntimeException e) {
            logger.warn("cannot free P2P memory of a destroyed group", e);
        }
    }

    /** Frees the regions that all peers have left. */
    static void free() {
        synchronized (RETIRED) {
            List<Retired> unused =
                    RETIRED.stream().filter(retired -> retired.hosts.isAlone()).toList();
            RETIRED.removeAll(unused);
            for (Retired retired : unused) {
                free(retired.others);
                free(retired.region::close);
                free(retired.hosts::close);
            }
        }
    }
}
