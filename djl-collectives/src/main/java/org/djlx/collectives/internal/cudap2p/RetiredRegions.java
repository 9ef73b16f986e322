/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.host.HostSync;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Memory of this process's GPUs that destroyed groups have left behind. Another rank may still
 * write into it, and would break its CUDA context if the memory were gone: it is freed when all
 * ranks have given theirs up, or have died; at the latest, with the process.
 */
final class RetiredRegions {

    private static final Logger logger = LoggerFactory.getLogger(RetiredRegions.class);
    private static final List<Retired> RETIRED = new ArrayList<>();
    private static final long LOOK_MILLIS = 250;

    private RetiredRegions() {}

    private record Retired(P2pRegion region, HostSync hosts, Runnable others) {}

    /**
     * Gives a region up, whose peers' memory this rank has unmapped.
     *
     * @param region this rank's memory
     * @param hosts the other ranks, of which this one takes its leave; closed with the region
     * @param others what gives up other memory that they may write into; run then
     */
    static void add(P2pRegion region, HostSync hosts, Runnable others) {
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

    /** Frees what other processes have yet to leave; ends when nothing is left to free. */
    private static void freeInTime() {
        try {
            do {
                Thread.sleep(LOOK_MILLIS);
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

    /** What cannot be freed must not keep the rest. */
    private static void free(Runnable part) {
        try {
            part.run();
        } catch (RuntimeException e) {
            logger.warn("what ranks had to themselves cannot be freed", e);
        }
    }

    /** Frees what nobody uses any more. */
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
