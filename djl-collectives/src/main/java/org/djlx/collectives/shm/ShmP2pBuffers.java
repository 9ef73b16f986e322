/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.shm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import org.djlx.collectives.Operation;
import org.djlx.collectives.P2pAllocator;
import org.djlx.collectives.P2pBuffers;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * P2P buffers in shared memory. Who uses them does not have to know when the group is destroyed:
 * the memory stays until nobody is within a method any more, and from then on there is an error.
 */
final class ShmP2pBuffers implements P2pBuffers {

    private final ReentrantReadWriteLock use = new ReentrantReadWriteLock();
    private boolean closed; // guarded by use

    private final ShmSegment segment;
    private final RankSync sync;
    private final int worldSize;
    private final P2pAllocator allocator;

    ShmP2pBuffers(ShmSegment segment, RankSync sync, int rank, int worldSize) {
        this.segment = segment;
        this.sync = sync;
        this.worldSize = worldSize;
        this.allocator = new P2pAllocator(this, rank);
    }

    @Override
    public long bufferSize() {
        return segment.bufferSize();
    }

    @Override
    public long heapSize() {
        return segment.heapSize();
    }

    @Override
    public P2pAllocator allocator() {
        return allocator;
    }

    @Override
    public int channels() {
        return ControlBlock.CHANNELS;
    }

    @Override
    public NDArray p2pBuffer(
            NDManager manager, int rank, Shape shape, ScalarType type, long offset) {
        checkRank(rank);
        long byteSize = Math.multiplyExact(shape.size(), type.itemSize());
        if (offset < 0 || offset > bufferSize() + heapSize() - byteSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s %s at %d does not fit into a P2P buffer of %d bytes and a heap of"
                                    + " %d bytes",
                            type, shape, offset, bufferSize(), heapSize()));
        }
        return Torch.view(
                manager, segment.memory(), segment.bufferOffset(rank) + offset, shape, type);
    }

    /** Ranks that disagree about one operation still agree about the number of the next. */
    @Override
    public int epoch(Operation operation) {
        return (int) operation.sequence();
    }

    @Override
    public void putSignal(int rank, int channel, int epoch) {
        checkRank(rank);
        checkChannel(channel);
        use(() -> sync.signal(rank, channel, epoch));
    }

    @Override
    public void waitSignal(Operation operation, int rank, int channel, int epoch) {
        checkRank(rank);
        checkChannel(channel);
        use(() -> sync.awaitSignal(operation, rank, channel, epoch));
    }

    @Override
    public void awaitAgreement(Operation operation) {
        use(() -> sync.awaitAgreement(operation));
    }

    @Override
    public void intraNodeBarrier(Operation operation) {
        use(
                () -> {
                    sync.awaitAgreement(operation);
                    sync.synchronize(operation);
                });
    }

    private void use(Runnable action) {
        use.readLock().lock();
        try {
            if (closed) {
                throw new IllegalStateException("the group of these buffers has been destroyed");
            }
            action.run();
        } finally {
            use.readLock().unlock();
        }
    }

    /** Waits until nobody uses the memory; to be called when waits fail. */
    void close() {
        use.writeLock().lock();
        closed = true;
        use.writeLock().unlock();
    }

    private void checkRank(int rank) {
        if (rank < 0 || rank >= worldSize) {
            throw new IllegalArgumentException(
                    "rank " + rank + " lies outside a group of " + worldSize + " ranks");
        }
    }

    private static void checkChannel(int channel) {
        if (channel < 0 || channel >= ControlBlock.CHANNELS) {
            throw new IllegalArgumentException(
                    "channel " + channel + " is not one of " + ControlBlock.CHANNELS);
        }
    }
}
