/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.p2p;

/**
 * Where a kernel of a GPU raises signals on other ranks and waits for theirs itself, within an
 * operation that has {@link P2pBuffers}. Ranks that have this have GPUs of the same architecture.
 * All words have 32 bits and are raised to the operation's epoch, by a release at system scope
 * after what they announce, and awaited by acquires.
 *
 * <pre>
 *   which operation rank r has entered, as it tells rank q; for q = r, how many it has counted:
 *       entered[q] + r * rankDistance
 *   the signal of channel 0 that rank r raises on rank q:
 *       words[q] + r * rankDistance
 *   the flag f that rank r raises on rank q:
 *       flags[q] + (r * flagCount + f) * 4
 * </pre>
 *
 * <p>The kernel counts the operation instead of asking for {@link P2pBuffers#epoch}, so a graph can
 * replay it with nothing around it. Its epoch is one more than the rank has counted, without 0. It
 * tells it to all others at its beginning, writes into the buffers of a rank, or what that one
 * reads in its own, only after that has told it, and counts at its end.
 *
 * @param blocks how many blocks that take up a multiprocessor each a rank may launch so that those
 *     of all ranks run at once; the same on all ranks
 * @param status the address of two words in memory of the host: a wait ends when the first is not
 *     0, and a kernel that has waited in vain for rank r for longer than the operation's timeout
 *     writes 1 + r to the second
 * @param entered of each rank, as this GPU addresses it: where ranks tell it their epochs
 * @param words of each rank, as this GPU addresses it: its words of channel 0
 * @param rankDistance from one rank's word to that of the next, in bytes
 * @param flags of each rank, as this GPU addresses it: its flags
 * @param flagCount how many of them each rank may raise
 * @param counters the address of {@value #COUNTERS} words of zeros in memory of this GPU, for
 *     kernels that leave them as they were
 */
public record KernelSignals(
        int blocks,
        long status,
        long[] entered,
        long[] words,
        long rankDistance,
        long[] flags,
        int flagCount,
        long counters) {

    /** The number of counters. */
    public static final int COUNTERS = 64;
}
