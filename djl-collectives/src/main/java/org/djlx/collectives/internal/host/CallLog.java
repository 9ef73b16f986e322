/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * What the hosts of all ranks have called, one after the other: each publishes its own calls and
 * compares them with those of the others when both are there, without waiting for any. So calls
 * that differ are found though the GPUs run them without the hosts.
 *
 * <p>A rank keeps its last {@value #SLOTS} calls. It overwrites call k only when all others have
 * published theirs with this number, and has then compared it itself; whoever is slower skips it.
 * So of every pair of ranks at least one compares every call.
 *
 * <pre>
 *   for each rank, written by it:
 *     0     int     the number of its last call
 *     64    slots of 192 bytes, by the call's number modulo their number:
 *             0     int     the number; 0 while the slot is written
 *             8     longs   the call, see {@link CallWords}
 * </pre>
 */
final class CallLog {

    /** How many calls a rank can be ahead of another; a GPU queues about as many. */
    static final int SLOTS = 512;

    private static final int HEADER = 64;
    private static final int SLOT = 192;
    private static final int CALL = 8;
    private static final int RECORD = HEADER + SLOTS * SLOT;

    private final AtomicBuffer words;
    private final int rank;
    private final int worldSize;
    private final int[] compared; // up to which call, with each rank
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

    /** Tells whether a rank has called so much that this one's next call has a slot. */
    boolean hasRoomFor(int peer) {
        return peer == rank || published(peer) - (last + 1 - SLOTS) >= 0;
    }

    private int published(int peer) {
        return words.getIntVolatile(peer * RECORD);
    }

    private static int slot(int peer, int number) {
        return peer * RECORD + HEADER + (number & SLOTS - 1) * SLOT;
    }

    /**
     * Publishes this rank's next call; to be called when {@link #hasRoomFor} holds of all.
     *
     * @param signature what is called
     * @param captured whether it goes into a graph
     * @return the number of the first call that differs from another rank's; 0 if there is none
     */
    int publish(long[] signature, boolean captured) {
        if (!hasCompared(last + 1 - SLOTS)) { // What is about to be overwritten.
            int different = compare();
            if (different != 0) {
                return different;
            }
        }
        last++;
        CallWords.put(latest, signature, captured);
        int slot = slot(rank, last);
        words.putIntVolatile(slot, 0);
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
     * Compares the calls that this rank and others have published and that were not compared
     * before.
     *
     * @return the number of the first that differs; 0 if there is none
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
        int other = slot(peer, number);
        if (words.getIntVolatile(other) != number) {
            return false; // It was overwritten, and that rank has compared it.
        }
        long[] own = latest;
        if (number != last) {
            words.getLongs(slot(rank, number) + CALL, ours);
            own = ours;
        }
        words.getLongs(other + CALL, theirs);
        return !Arrays.equals(own, theirs) && words.getIntVolatile(other) == number;
    }

    /** The ranks that have called least, if this one has called more. */
    List<Integer> behind() {
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

    /** The words of what each rank called, by its number, as far as that is still known. */
    Map<Integer, long[]> calls(int number) {
        Map<Integer, long[]> calls = new TreeMap<>();
        for (int peer = 0; peer < worldSize; peer++) {
            int slot = slot(peer, number);
            if (words.getIntVolatile(slot) == number) {
                long[] call = new long[CallWords.COUNT];
                words.getLongs(slot + CALL, call);
                calls.put(peer, call);
            }
        }
        return calls;
    }
}
