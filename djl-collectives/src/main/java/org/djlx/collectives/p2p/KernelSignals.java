// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

/**
 * Addresses for a GPU kernel that signals other ranks and waits for their signals, within an
 * operation on {@link P2pBuffers}. Available only if the GPUs of all ranks have the same
 * architecture.
 *
 * <p>All words but the counters have 64 bits. A kernel sets a word to the operation's epoch with a
 * release store at system scope, after the data that it announces, and waits with acquire loads.
 *
 * <pre>
 *   epoch that rank r has entered, on rank q (for q = r: operations counted by r)
 *       entered[q] + r * rankDistance
 *   signal of channel 0 from rank r to rank q
 *       words[q] + r * rankDistance
 *   flag f from rank r to rank q
 *       flags[q] + (r * flagCount + f) * 8
 * </pre>
 *
 * <p>The kernel counts operations itself instead of calling {@link P2pBuffers#epoch}, so a graph
 * can replay the kernel without the host. Protocol:
 *
 * <ol>
 *   <li>The epoch is the rank's count plus one.
 *   <li>At its start the kernel writes the epoch to {@code entered} on all other ranks.
 *   <li>It writes to a rank's buffers, or to its own data that the rank reads, only after that rank
 *       has entered the epoch.
 *   <li>At its end it increments its own count.
 * </ol>
 *
 * @param blocks the maximum number of thread blocks that a rank may launch, if each block takes an
 *     SM. With this limit the blocks of all ranks are resident at the same time. The same on all
 *     ranks
 * @param status the address of {@code struct Status} of {@code signal.cuh} in host memory. A wait
 *     ends when its first word is not 0. A kernel whose wait for rank r times out writes 1 + r to
 *     the second. A kernel that refuses splits writes a {@link SplitError} to the others
 * @param entered by rank, as addressed by this GPU: the words with the ranks' entered epochs
 * @param words by rank, as addressed by this GPU: the signal words of channel 0
 * @param rankDistance the distance between the words of successive source ranks, in bytes
 * @param flags by rank, as addressed by this GPU: the flags
 * @param flagCount the number of flags per source rank
 * @param counters the address of {@value #COUNTERS} zeroed words of 32 bits in this GPU's memory; a
 *     kernel must leave them zero
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
