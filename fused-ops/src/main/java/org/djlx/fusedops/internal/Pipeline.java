/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;

/**
 * The schedules of fused operators and of low-contention collectives, for one rank of a group. They
 * are written against {@link P2pStream}, and know nothing of the backend that brings it.
 *
 * <p>They push: a rank writes what it has into the slot of the rank that needs it and raises a
 * signal there, on a stream of its own, while the current stream computes. (Flux, Chang et al.
 * 2024, and PyTorch's async tensor parallelism have the same structure; they pull.) A rank works on
 * what it has itself first; the other ranks are served, and served from, in an order that starts
 * next to it, so that no two push to the same rank at the same time.
 *
 * <p>Memory is given by address, contiguous. Run them within {@link ProcessGroup#execute}.
 */
public final class Pipeline {

    // One signal word a pair of ranks is enough: a rank raises it once an operation.
    private static final int CHANNEL = 0;

    // A matmul of few rows takes as long as one of many: up to so many bytes there is nothing to
    // hide behind a part of the matmul.
    private static final long SMALL = 1 << 20;

    private final P2pBuffers buffers;
    private final int rank;
    private final int worldSize;

    /**
     * Creates the schedules of a group.
     *
     * @param group the group, which has P2P buffers
     */
    public Pipeline(ProcessGroup group) {
        this.buffers = group.p2pBuffers().orElseThrow();
        this.rank = group.rank();
        this.worldSize = group.worldSize();
    }

    /** To be called when this rank has enqueued what it sends, and before it waits for others. */
    private void agreeBeforeWaits(Operation operation, P2pStream current, P2pStream side) {
        buffers.awaitAgreement(operation);
        if (current.isRecorded()) {
            // CUDA may do the branches of a graph one after the other: first what is sent, then.
            current.waitEvent(side.record());
        }
    }

    /** Works on the shard of one rank. */
    @FunctionalInterface
    public interface ShardConsumer {

        /**
         * Enqueues work on the current stream.
         *
         * @param stream the current stream
         * @param rank the rank whose shard it is
         * @param shard the shard's address
         */
        void consume(P2pStream stream, int rank, long shard);
    }

    /**
     * Gather and consume: every rank's shard is handed to the consumer of every rank, as it
     * arrives.
     *
     * @param operation the operation under way
     * @param slots slots of the shard's size
     * @param shard the address of this rank's shard
     * @param byteSize its size, the same on all ranks
     * @param consumer called once for each rank, this one first
     * @param used what the consumer works on, kept for replays
     */
    public void gatherAndConsume(
            Operation operation,
            Slots slots,
            long shard,
            long byteSize,
            ShardConsumer consumer,
            NDArray... used) {
        operation.setAlgorithm("pipelined");
        int epoch = buffers.epoch(operation);
        try (P2pStream current = buffers.currentStream(operation);
                P2pStream side = buffers.sideStream(operation)) {
            P2pStream.Event[] pushed =
                    push(current, side, epoch, slots.offset(epoch, rank), shard, byteSize);
            consumer.consume(current, rank, shard);
            buffers.awaitAgreement(operation);
            for (int step = 1; step < worldSize; step++) {
                int peer = (rank + step) % worldSize;
                if (current.isRecorded()) {
                    // CUDA may do the branches of a graph one after the other. What a rank waits
                    // for in a step has been sent before its peer waits for anything of that step.
                    current.waitEvent(pushed[step]);
                }
                current.waitSignal(peer, CHANNEL, epoch);
                consumer.consume(current, peer, slot(slots, epoch, peer));
            }
            finish(current, side, used);
        }
    }

    /**
     * Sends this rank's shard to the same place on all others, beside the current stream. Returns,
     * if that is recorded, for each step when it is done.
     */
    private P2pStream.Event[] push(
            P2pStream current, P2pStream side, int epoch, long offset, long shard, long byteSize) {
        side.waitEvent(current.record());
        P2pStream.Event[] pushed = new P2pStream.Event[worldSize];
        for (int step = 1; step < worldSize; step++) {
            int peer = (rank - step + worldSize) % worldSize;
            side.put(peer, offset, shard, byteSize);
            side.signal(peer, CHANNEL, epoch);
            if (current.isRecorded()) {
                pushed[step] = side.record();
            }
        }
        return pushed;
    }

    /** Works on the shards of all ranks. */
    @FunctionalInterface
    public interface WholeConsumer {

        /**
         * Enqueues work on the current stream.
         *
         * @param stream the current stream
         * @param shards the address of the shards, one after the other in rank order
         */
        void consume(P2pStream stream, long shards);
    }

    /**
     * Tells whether what a rank sends to another is so little that on the CPU it is better sent as
     * a whole before, or computed as a whole, than in parts beside the computation.
     *
     * @param byteSize its size
     * @return whether it is
     */
    public static boolean isSmall(long byteSize) {
        return byteSize <= SMALL;
    }

    /**
     * Tells whether what ranks send can be received as a whole: slots lie one after the other
     * without gaps.
     *
     * @param byteSize the size of what a rank sends to another
     * @return whether it can
     */
    public static boolean isWhole(long byteSize) {
        return byteSize % Slots.ALIGNMENT == 0;
    }

    /**
     * Gather, then consume: for shards that {@linkplain #isWhole leave no gaps}.
     *
     * @param operation the operation under way
     * @param slots slots of the shard's size
     * @param shard the address of this rank's shard
     * @param byteSize its size, the same on all ranks
     * @param consumer called once, when all are there
     * @param used what the consumer works on, kept for replays
     */
    public void gatherThenConsume(
            Operation operation,
            Slots slots,
            long shard,
            long byteSize,
            WholeConsumer consumer,
            NDArray... used) {
        operation.setAlgorithm("gathered");
        int epoch = buffers.epoch(operation);
        try (P2pStream current = buffers.currentStream(operation);
                P2pStream side = buffers.sideStream(operation)) {
            push(current, side, epoch, slots.offset(epoch, rank), shard, byteSize);
            current.copy(slot(slots, epoch, rank), shard, byteSize);
            agreeBeforeWaits(operation, current, side);
            current.waitSignals(CHANNEL, epoch);
            consumer.consume(current, slot(slots, epoch, 0));
            finish(current, side, used);
        }
    }

    /** The address of this rank's slot into which a rank writes. */
    private long slot(Slots slots, int epoch, int source) {
        return buffers.address(rank, slots.offset(epoch, source));
    }

    /** What follows may overwrite what is being sent. */
    private static void finish(P2pStream current, P2pStream side, NDArray... used) {
        current.waitEvent(side.record());
        current.keepAlive(used);
    }

    /**
     * Gather into memory in the heap: every rank's shard is pushed to where it belongs on every
     * rank.
     *
     * @param operation the operation under way
     * @param offset where the shards go, one after the other in rank order: in the heap of every
     *     rank, in bytes from the start of its P2P memory
     * @param shard the address of this rank's shard; may be its part of the output
     * @param byteSize its size, the same on all ranks
     * @param used what is read and written, kept for replays
     */
    public void gatherInPlace(
            Operation operation, long offset, long shard, long byteSize, NDArray... used) {
        operation.setAlgorithm("pipelined");
        // Before, another rank may still read what it has there.
        buffers.intraNodeBarrier(operation);
        int epoch = buffers.epoch(operation);
        long own = offset + rank * byteSize;
        try (P2pStream current = buffers.currentStream(operation);
                P2pStream side = buffers.sideStream(operation)) {
            push(current, side, epoch, own, shard, byteSize);
            long place = buffers.address(rank, own);
            if (place != shard) {
                current.copy(place, shard, byteSize);
            }
            agreeBeforeWaits(operation, current, side);
            current.waitSignals(CHANNEL, epoch);
            finish(current, side, used);
        }
    }

    /** Reduces what lies in the slots of all ranks. */
    @FunctionalInterface
    public interface SlotReducer {

        /**
         * Enqueues work on the current stream.
         *
         * @param first the address of rank 0's slot
         * @param distance from one rank's slot to the next, in bytes
         */
        void reduce(long first, long distance);
    }

    /**
     * Scatter and reduce: every rank pushes the parts that it has to the ranks they are for; each
     * reduces what it got.
     *
     * @param operation the operation under way
     * @param slots slots of a part's size
     * @param parts the address of the parts, one for each rank, one after the other
     * @param byteSize the size of a part, the same on all ranks
     * @param reducer called when all parts for this rank are there
     * @param used what is read and written, kept for replays
     */
    public void scatterAndReduce(
            Operation operation,
            Slots slots,
            long parts,
            long byteSize,
            SlotReducer reducer,
            NDArray... used) {
        operation.setAlgorithm("pipelined");
        int epoch = buffers.epoch(operation);
        try (P2pStream current = buffers.currentStream(operation);
                P2pStream side = buffers.sideStream(operation)) {
            side.waitEvent(current.record());
            for (int step = 1; step < worldSize; step++) {
                int peer = (rank + step) % worldSize;
                side.put(peer, slots.offset(epoch, rank), parts + peer * byteSize, byteSize);
                side.signal(peer, CHANNEL, epoch);
            }
            current.copy(slot(slots, epoch, rank), parts + rank * byteSize, byteSize);
            agreeBeforeWaits(operation, current, side);
            reduceSlots(current, slots, epoch, reducer);
            finish(current, side, used);
        }
    }

    /** Waits for the parts from all ranks, this one's being there, and reduces them. */
    private void reduceSlots(P2pStream current, Slots slots, int epoch, SlotReducer reducer) {
        current.waitSignals(CHANNEL, epoch);
        reducer.reduce(slot(slots, epoch, 0), slots.distance());
    }

    /** Makes this rank's part of what one rank is to get. */
    @FunctionalInterface
    public interface PartProducer {

        /**
         * Enqueues work on the current stream.
         *
         * @param rank the rank that gets the part
         * @param part the address where the part goes
         */
        void produce(int rank, long part);
    }

    /**
     * Produce and scatter: every rank makes a part for each rank; each reduces the parts made for
     * it.
     *
     * @param operation the operation under way
     * @param slots slots of a part's size
     * @param staging the addresses of memory for two parts: one is computed while the other is
     *     pushed
     * @param byteSize the size of a part, the same on all ranks
     * @param producer called once for each rank, this one last
     * @param reducer called when all parts for this rank are there
     * @param used what is read and written, kept for replays
     */
    public void produceAndScatter(
            Operation operation,
            Slots slots,
            long[] staging,
            long byteSize,
            PartProducer producer,
            SlotReducer reducer,
            NDArray... used) {
        operation.setAlgorithm("pipelined");
        int epoch = buffers.epoch(operation);
        try (P2pStream current = buffers.currentStream(operation);
                P2pStream side = buffers.sideStream(operation)) {
            P2pStream.Event[] pushed = new P2pStream.Event[2];
            for (int step = 1; step < worldSize; step++) {
                int peer = (rank + step) % worldSize;
                int turn = step & 1;
                if (pushed[turn] != null) {
                    current.waitEvent(pushed[turn]);
                }
                producer.produce(peer, staging[turn]);
                side.waitEvent(current.record());
                side.put(peer, slots.offset(epoch, rank), staging[turn], byteSize);
                side.signal(peer, CHANNEL, epoch);
                if (step + 2 < worldSize) {
                    pushed[turn] = side.record();
                }
            }
            producer.produce(rank, slot(slots, epoch, rank));
            agreeBeforeWaits(operation, current, side);
            reduceSlots(current, slots, epoch, reducer);
            finish(current, side, used);
        }
    }
}
