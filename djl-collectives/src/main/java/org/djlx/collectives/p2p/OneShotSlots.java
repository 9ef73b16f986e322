/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.p2p;

import java.time.Duration;
import org.djlx.collectives.internal.host.Required;

/**
 * Where a kernel of a GPU exchanges data with those of other ranks as one-shot all-reduces do,
 * within an operation that has {@link P2pBuffers}. Ranks that have this have GPUs of the same
 * architecture.
 *
 * <p>The slots are those of the group's own all-reduces, which follow on such a kernel and go
 * before it, also in graphs: {@code one_shot.cuh} says how launches take turns. A kernel sends
 * something to every other rank, waits for what they send, leaves the slots as it has found them,
 * and counts its launch. Nothing else keeps it apart from other launches, so it costs no barrier in
 * a graph.
 *
 * <pre>
 *   what rank r sends to rank q lies there, in a launch whose number is e, at
 *       regions[q] + begin + e % 2 * half + (r &lt; q ? r : r - 1) * slot
 * </pre>
 *
 * @param blocks how many blocks a rank may launch, each taking an SM, so that the blocks of all
 *     ranks run at once; on a GPU that ranks share, few enough to leave half of its SMs to kernels
 *     that do not wait; the same on all ranks
 * @param status the address of two words in memory of the host, as of {@link KernelSignals#status}
 * @param regions where each rank's memory for all-reduces begins, as this GPU addresses it: with a
 *     count of launches
 * @param begin where the first half of the slots begins, in bytes from there
 * @param half the size of each half, in bytes
 * @param slot the size of a slot, in bytes
 */
public record OneShotSlots(
        int blocks, long status, long[] regions, long begin, long half, long slot) {

    private static final int MAX_RANKS = 8;

    /**
     * Returns what a kernel is told of them, the struct Launch of {@code one_shot.cuh}.
     *
     * @param rank this rank
     * @param timeout how long the kernel waits for other ranks
     * @return the words of the struct
     * @throws IllegalArgumentException if the timeout is null
     */
    public long[] launch(int rank, Duration timeout) {
        Required.argument("launch: timeout", timeout);
        long[] launch = new long[MAX_RANKS + 6];
        System.arraycopy(regions, 0, launch, 0, regions.length);
        launch[MAX_RANKS] = status;
        launch[MAX_RANKS + 1] = timeout.toNanos();
        launch[MAX_RANKS + 2] = begin;
        launch[MAX_RANKS + 3] = half;
        launch[MAX_RANKS + 4] = slot;
        launch[MAX_RANKS + 5] = rank;
        return launch;
    }
}
