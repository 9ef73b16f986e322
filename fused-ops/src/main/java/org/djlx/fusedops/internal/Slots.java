/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.P2pBuffers;
import org.djlx.nativeops.ScalarType;

/**
 * How an operation divides the ranks' P2P buffers: a slot for each rank that sends, all in the half
 * that belongs to the operation's epoch.
 *
 * <pre>
 *   buffer of a rank:  | half 0: slot 0 | slot 1 | …      | half 1: slot 0 | slot 1 | …      |
 * </pre>
 */
final class Slots {

    // Vector and matrix instructions like aligned rows, and a cache line has one writer.
    private static final long ALIGNMENT = 256;

    private final P2pBuffers buffers;
    private final NDManager manager;
    private final int rank;
    private final Shape shape;
    private final ScalarType type;
    private final long half;

    Slots(
            P2pBuffers buffers,
            NDManager manager,
            int rank,
            Shape shape,
            ScalarType type,
            int epoch) {
        this.buffers = buffers;
        this.manager = manager;
        this.rank = rank;
        this.shape = shape;
        this.type = type;
        this.half = (epoch & 1) * halfSize(buffers.bufferSize());
    }

    private static long halfSize(long byteSize) {
        return byteSize / 2 / ALIGNMENT * ALIGNMENT;
    }

    private static long slotSize(Shape shape, ScalarType type) {
        long byteSize = Math.multiplyExact(shape.size(), type.itemSize());
        return (byteSize + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /** Tells whether a buffer is large enough for a slot of some shape for each rank. */
    static boolean fit(long byteSize, int worldSize, Shape shape, ScalarType type) {
        return slotSize(shape, type) <= halfSize(byteSize) / worldSize;
    }

    /** Where on any rank the slot is into which a rank writes. */
    long offset(int source) {
        return half + source * slotSize(shape, type);
    }

    /** This rank's slot into which a rank writes. */
    NDArray slot(int source) {
        return buffers.p2pBuffer(manager, rank, shape, type, offset(source));
    }
}
