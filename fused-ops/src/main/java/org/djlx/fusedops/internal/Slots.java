/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.nativeops.torch.ScalarType;

/**
 * How an operation divides the ranks' P2P buffers: a slot for each rank that sends, all in the half
 * that belongs to the operation's epoch.
 *
 * <pre>
 *   buffer of a rank:  | half 0: slot 0 | slot 1 | …      | half 1: slot 0 | slot 1 | …      |
 * </pre>
 */
public final class Slots {

    /** Vector and matrix instructions like aligned rows, and a cache line has one writer. */
    static final long ALIGNMENT = 256;

    private final P2pBuffers buffers;
    private final long half;
    private final long slot;

    /**
     * Divides the buffers.
     *
     * @param buffers the buffers, in which the slots {@link #fit}
     * @param byteSize the size of what a rank sends to another
     */
    public Slots(P2pBuffers buffers, long byteSize) {
        this.buffers = buffers;
        half = halfSize(buffers.bufferSize());
        slot = align(byteSize);
    }

    private static long halfSize(long byteSize) {
        return byteSize / 2 / ALIGNMENT * ALIGNMENT;
    }

    private static long align(long byteSize) {
        return Math.addExact(byteSize, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /**
     * Tells whether buffers are large enough for a slot for each rank.
     *
     * @param buffers the buffers
     * @param worldSize the number of ranks
     * @param count how many elements a rank sends to another
     * @param type their type
     * @return whether they are
     */
    public static boolean fit(P2pBuffers buffers, int worldSize, long count, ScalarType type) {
        long byteSize = Math.multiplyExact(count, type.itemSize());
        return align(byteSize) <= halfSize(buffers.bufferSize()) / worldSize;
    }

    /**
     * Returns the buffers.
     *
     * @return what is divided
     */
    public P2pBuffers buffers() {
        return buffers;
    }

    /** Where on any rank the slot is into which a rank writes. */
    long offset(int epoch, int source) {
        return (epoch & 1) * half + source * slot;
    }

    /** From one rank's slot to the next, in bytes. */
    long distance() {
        return slot;
    }
}
