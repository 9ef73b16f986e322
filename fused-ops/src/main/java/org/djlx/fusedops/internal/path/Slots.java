// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.p2p.P2pBuffers;

/**
 * Layout of the P2P buffers of an operation, in the half of the buffer that the operation's epoch
 * selects. If the parts of all ranks fit, there is one slot for each sending rank:
 *
 * <pre>
 *   buffer of a rank:  | half 0: slot 0 | slot 1 | …      | half 1: slot 0 | slot 1 | …      |
 * </pre>
 *
 * Otherwise parts are sent in rounds. A rank then receives from one rank at a time, into two
 * windows in turn:
 *
 * <pre>
 *   buffer of a rank:  | half 0: window 0 | window 1      | half 1: window 0 | window 1      |
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
    private final long window; // 0 if the parts fit

    /**
     * Divides the buffers. The same on all ranks, which have buffers of one size.
     *
     * @param buffers the buffers; they must have {@linkplain #isPossible room}
     * @param byteSize the number of bytes that a rank sends to a peer
     */
    public Slots(P2pBuffers buffers, long byteSize) {
        this.buffers = buffers;
        half = halfSize(buffers.bufferSize());
        slot = align(byteSize);
        window = fit(buffers, byteSize) ? 0 : window(buffers);
    }

    /** Returns the size of each half of a buffer, and the offset of the second. */
    public static long halfSize(long byteSize) {
        return byteSize / 2 / ALIGNMENT * ALIGNMENT;
    }

    /** Rounds a size up to the alignment of slots. */
    public static long align(long byteSize) {
        return Math.addExact(byteSize, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    private static long window(P2pBuffers buffers) {
        return halfSize(halfSize(buffers.bufferSize()));
    }

    /**
     * Returns whether the buffers have room for one slot per rank, each for the bytes that a rank
     * sends to a peer.
     */
    public static boolean fit(P2pBuffers buffers, long byteSize) {
        return align(byteSize) <= halfSize(buffers.bufferSize()) / buffers.worldSize();
    }

    public static boolean isPossible(P2pBuffers buffers, long byteSize) {
        return fit(buffers, byteSize) || window(buffers) > 0;
    }

    public P2pBuffers buffers() {
        return buffers;
    }

    /** Returns whether parts do not fit, and are sent in rounds. */
    public boolean hasRounds() {
        return window > 0;
    }

    /** Returns the largest number of bytes of a round. */
    long window() {
        return window;
    }

    /** Returns the offset of the window of a round, the same on all ranks. */
    long windowOffset(long epoch, long round) {
        return (epoch & 1) * half + (round & 1) * window;
    }

    /** Returns the offset of the slot that a rank writes, the same on all ranks. */
    public long offset(long epoch, int source) {
        return (epoch & 1) * half + source * slot;
    }

    /** Returns the shape of an array of bytes for the received parts of all ranks. */
    public Shape receivedShape() {
        return new Shape(buffers.worldSize() * slot);
    }

    /** Returns the distance from one slot, or from one received part, to the next, in bytes. */
    public long distance() {
        return slot;
    }
}
