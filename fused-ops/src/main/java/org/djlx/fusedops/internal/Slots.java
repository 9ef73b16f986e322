// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import org.djlx.collectives.p2p.P2pBuffers;

/**
 * Layout of the P2P buffers of an operation: one slot for each sending rank, in the half of the
 * buffer that the operation's epoch selects.
 *
 * <pre>
 *   buffer of a rank:  | half 0: slot 0 | slot 1 | …      | half 1: slot 0 | slot 1 | …      |
 * </pre>
 */
public final class Slots {

    /**
     * Slots are aligned for vector and matrix instructions. The alignment also gives each cache
     * line a single writer.
     */
    static final long ALIGNMENT = 256;

    private final P2pBuffers buffers;
    private final long half;
    private final long slot;

    /**
     * Divides the buffers.
     *
     * @param buffers the buffers; the slots must {@link #fit}
     * @param byteSize the number of bytes that a rank sends to a peer
     */
    public Slots(P2pBuffers buffers, long byteSize) {
        this.buffers = buffers;
        half = halfSize(buffers.bufferSize());
        slot = align(byteSize);
    }

    /** Returns the size of each half of a buffer, and the offset of the second. */
    static long halfSize(long byteSize) {
        return byteSize / 2 / ALIGNMENT * ALIGNMENT;
    }

    static long align(long byteSize) {
        return Math.addExact(byteSize, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /**
     * Returns whether the buffers have room for one slot per rank, each for the bytes that a rank
     * sends to a peer.
     */
    public static boolean fit(P2pBuffers buffers, int worldSize, long byteSize) {
        return align(byteSize) <= halfSize(buffers.bufferSize()) / worldSize;
    }

    /** Returns the buffers. */
    public P2pBuffers buffers() {
        return buffers;
    }

    /** Returns the offset of the slot that a rank writes, the same on all ranks. */
    long offset(int epoch, int source) {
        return (epoch & 1) * half + source * slot;
    }

    /** Returns the distance from one slot to the next, in bytes. */
    long distance() {
        return slot;
    }
}
