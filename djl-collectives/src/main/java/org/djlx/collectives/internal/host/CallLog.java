// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.lang.invoke.VarHandle;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * A log of the calls of all ranks in shared memory. Each rank publishes its calls. A rank compares
 * a call with another rank's call once both are published, without waiting. So mismatches are found
 * although the GPUs run the operations asynchronously.
 *
 * <p>A rank keeps its last {@value #SLOTS} calls. It overwrites call k only after all other ranks
 * have published their call k and this rank has compared the calls. A slower rank skips an
 * overwritten call. So for every pair of ranks, at least one of the two compares every call.
 *
 * <pre>
 *   per rank, written by that rank:
 *     0     int     number of its last call
 *     64    slots of 192 bytes; call k is in slot k modulo {@value #SLOTS}:
 *             0     int     number of the call; 0 while the slot is written
 *             8     longs   the call, see {@link CallWords}
 * </pre>
 */
final class CallLog {

    /** The maximum lead of a rank over another rank, in calls. */
    static final int SLOTS = 512;

    private static final int HEADER = 64;
    private static final int SLOT = 192;
    private static final int CALL = 8;
    private static final int RECORD = HEADER + SLOTS * SLOT;

    private final AtomicBuffer words;
    private final int rank;
    private final int worldSize;
    private final int[] compared; // by rank: number of the last call that has been compared
    private final long[] latest = new long[CallWords.COUNT]; // this rank's last call
    private final long[] ours = new long[CallWords.COUNT];
    private final long[] theirs = new long[CallWords.COUNT];
    private int last; // the number of this rank's last call; the first is 1

    CallLog(NativeMemory memory, long offset, int rank, int worldSize) {
        this.words = new AtomicBuffer(memory, offset, byteSize(worldSize));
        this.rank = rank;
        this.worldSize = worldSize;
        this.compared = new int[worldSize];
    }

    static int byteSize(int worldSize) {
        return worldSize * RECORD;
    }

    /**
     * Returns whether a rank has published enough calls to free the slot of this rank's next call.
     */
    boolean hasRoomFor(int peer) {
        int freed = last + 1 - SLOTS;
        // A rank has published what has been compared.
        return peer == rank || compared[peer] - freed >= 0 || published(peer) - freed >= 0;
    }

    private int published(int peer) {
        return words.getIntVolatile(peer * RECORD);
    }

    private static int slot(int peer, int number) {
        return peer * RECORD + HEADER + (number & SLOTS - 1) * SLOT;
    }

    /**
     * Publishes this rank's next call. {@link #hasRoomFor} must hold for all ranks. Returns the
     * number of the first call that does not match another rank's; 0 if there is none.
     */
    int publish(long[] signature, boolean captured) {
        if (!hasCompared(last + 1 - SLOTS)) { // The call that is about to be overwritten.
            int different = compare();
            if (different != 0) {
                return different;
            }
        }
        last++;
        CallWords.put(latest, signature, captured);
        int slot = slot(rank, last);
        words.putIntVolatile(slot, 0);
        VarHandle.storeStoreFence(); // Later writes may move before a volatile write.
        words.putLongs(slot + CALL, latest);
        words.putIntVolatile(slot, last);
        words.putIntVolatile(rank * RECORD, last);
        return compare();
    }

    private boolean hasCompared(int number) {
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank && compared[peer] - number < 0) {
                return false;
            }
        }
        return true;
    }

    /**
     * Compares this rank's calls with other ranks' calls, as far as both are published and not yet
     * compared. Returns the number of the first call that differs; 0 if none differs.
     */
    int compare() {
        int first = 0;
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer == rank) {
                continue;
            }
            int until = published(peer);
            if (until - last > 0) {
                until = last;
            }
            while (compared[peer] != until) {
                int number = compared[peer] + 1;
                if (differs(peer, number)) {
                    first = first == 0 || number - first < 0 ? number : first;
                    break;
                }
                compared[peer] = number;
            }
        }
        return first;
    }

    private boolean differs(int peer, int number) {
        if (!read(peer, number, theirs)) {
            return false; // The peer compared this call, then overwrote it.
        }
        long[] own = latest;
        if (number != last) {
            words.getLongs(slot(rank, number) + CALL, ours);
            own = ours;
        }
        return !Arrays.equals(own, theirs);
    }

    /**
     * Reads a call; returns false if another call was written to its slot before or during the
     * read.
     */
    private boolean read(int peer, int number, long[] call) {
        int slot = slot(peer, number);
        if (words.getIntVolatile(slot) != number) {
            return false;
        }
        words.getLongs(slot + CALL, call);
        VarHandle.acquireFence(); // Earlier reads may move after a volatile read.
        return words.getIntVolatile(slot) == number;
    }

    /** Returns the ranks with the fewest calls, if this rank has more. */
    List<Integer> slowestRanks() {
        List<Integer> ranks = new ArrayList<>();
        int least = last;
        for (int peer = 0; peer < worldSize; peer++) {
            int until = published(peer);
            if (until - least < 0) {
                least = until;
                ranks.clear();
            }
            if (until == least && least != last) {
                ranks.add(peer);
            }
        }
        return ranks;
    }

    /**
     * Returns the words of the ranks' calls with this number, by rank, without overwritten calls.
     */
    Map<Integer, long[]> calls(int number) {
        Map<Integer, long[]> calls = new TreeMap<>();
        for (int peer = 0; peer < worldSize; peer++) {
            long[] call = new long[CallWords.COUNT];
            if (read(peer, number, call)) {
                calls.put(peer, call);
            }
        }
        return calls;
    }
}
