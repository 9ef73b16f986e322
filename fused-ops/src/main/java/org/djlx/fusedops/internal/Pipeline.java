/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.Operation;
import org.djlx.collectives.P2pBuffers;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.CudaP2pBuffers;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * The schedules of fused operators and of low-contention collectives, for one operation of one
 * rank.
 *
 * <p>Both push: a rank writes what it has into the slot of the rank that needs it and raises a
 * signal there, on a stream of its own, while the current stream computes. (Flux, Chang et al.
 * 2024, and PyTorch's async tensor parallelism have the same structure; they pull.) A rank works on
 * what it has itself first; the other ranks are served, and served from, in an order that starts
 * next to it, so that no two push to the same rank at the same time.
 *
 * <p>Arrays passed in must be contiguous. Run it within {@link ProcessGroup#execute}.
 */
public final class Pipeline {

    private final P2pBuffers buffers;
    private final Operation operation;
    private final NDManager manager;
    private final int rank;
    private final int worldSize;

    /**
     * Creates the pipeline of one operation.
     *
     * @param group the group, which has P2P buffers
     * @param operation the operation under way
     * @param manager takes temporary arrays; to be closed after the operation
     */
    public Pipeline(ProcessGroup group, Operation operation, NDManager manager) {
        this.buffers = group.p2pBuffers().orElseThrow();
        this.operation = operation;
        operation.setAlgorithm("pipelined");
        this.manager = manager;
        this.rank = group.rank();
        this.worldSize = group.worldSize();
    }

    /**
     * Tells whether a group's buffers are large enough for what each rank sends to each.
     *
     * @param group the group
     * @param shape the shape of what a rank sends to another
     * @param type its element type
     * @return true if it fits; false also if the group has no buffers
     */
    public static boolean fits(ProcessGroup group, Shape shape, ScalarType type) {
        return group.p2pBuffers()
                .map(b -> Slots.fit(b.bufferSize(), group.worldSize(), shape, type))
                .orElse(false);
    }

    private OpStream currentStream() {
        return buffers instanceof CudaP2pBuffers cuda
                ? CudaOpStream.current(cuda)
                : HostStream.current(buffers, operation);
    }

    private OpStream sideStream() {
        return buffers instanceof CudaP2pBuffers cuda
                ? CudaOpStream.side(cuda)
                : HostStream.side(buffers, operation);
    }

    /** To be called when this rank has enqueued what it sends, and before it waits for others. */
    private void agreeBeforeWaits(OpStream current, OpStream side) {
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
         * Enqueues work.
         *
         * @param stream where to
         * @param rank the rank whose shard it is
         * @param shard the shard
         */
        void consume(OpStream stream, int rank, NDArray shard);
    }

    /**
     * Gather and consume: every rank's shard is handed to the consumer of every rank, as it
     * arrives.
     *
     * @param shard this rank's shard; the same shape on all ranks
     * @param type its element type
     * @param consumer called once for each rank, this one first
     */
    public void gatherAndConsume(NDArray shard, ScalarType type, ShardConsumer consumer) {
        int epoch = buffers.epoch(operation);
        Slots slots = new Slots(buffers, manager, rank, shard.getShape(), type, epoch);
        try (OpStream current = currentStream();
                OpStream side = sideStream()) {
            side.waitEvent(current.record());
            for (int step = 1; step < worldSize; step++) {
                int peer = (rank - step + worldSize) % worldSize;
                side.put(peer, slots.offset(rank), shard);
                side.signal(peer, epoch);
            }
            consumer.consume(current, rank, shard);
            agreeBeforeWaits(current, side);
            for (int step = 1; step < worldSize; step++) {
                int peer = (rank + step) % worldSize;
                current.waitSignal(peer, epoch);
                consumer.consume(current, peer, slots.slot(peer));
            }
            // What follows may overwrite what is being sent.
            current.waitEvent(side.record());
        }
    }

    /**
     * Gather into arrays in the heap: every rank's shard is pushed to where it belongs on every
     * rank.
     *
     * @param output where the shards go, one after the other in rank order; in this rank's heap,
     *     and on the others at the same offset
     * @param shard this rank's shard; the same shape on all ranks. May be its part of the output
     * @param type the element type
     */
    public void gatherInPlace(NDArray output, NDArray shard, ScalarType type) {
        int epoch = buffers.epoch(operation);
        long offset = buffers.allocator().offsetOf(output).orElseThrow();
        long own = offset + rank * Math.multiplyExact(shard.getShape().size(), type.itemSize());
        try (OpStream current = currentStream();
                OpStream side = sideStream()) {
            // Before, another rank may still read what it has there.
            buffers.intraNodeBarrier(operation);
            side.waitEvent(current.record());
            for (int step = 1; step < worldSize; step++) {
                int peer = (rank - step + worldSize) % worldSize;
                side.put(peer, own, shard);
                side.signal(peer, epoch);
            }
            NDArray place = buffers.p2pBuffer(manager, rank, shard.getShape(), type, own);
            if (Torch.dataPointer(place) != Torch.dataPointer(shard)) {
                current.copy(place, shard);
            }
            agreeBeforeWaits(current, side);
            for (int step = 1; step < worldSize; step++) {
                current.waitSignal((rank + step) % worldSize, epoch);
            }
            // What follows may overwrite what is being sent.
            current.waitEvent(side.record());
        }
    }

    /**
     * Scatter and reduce: every rank pushes the parts that it has to the ranks they are for; each
     * reduces what it got, in rank order.
     *
     * @param result where the reduced parts go; the same shape on all ranks
     * @param parts a part for each rank, each of the result's shape; may share memory with the
     *     result
     * @param type the element type
     * @param op how to reduce
     */
    public void scatterAndReduce(
            NDArray result, List<NDArray> parts, ScalarType type, ReduceOp op) {
        int epoch = buffers.epoch(operation);
        Slots slots = new Slots(buffers, manager, rank, result.getShape(), type, epoch);
        try (OpStream current = currentStream();
                OpStream side = sideStream()) {
            side.waitEvent(current.record());
            for (int step = 1; step < worldSize; step++) {
                int peer = (rank + step) % worldSize;
                side.put(peer, slots.offset(rank), parts.get(peer));
                side.signal(peer, epoch);
            }
            current.copy(slots.slot(rank), parts.get(rank));
            agreeBeforeWaits(current, side);
            reduceSlots(current, slots, result, op, epoch);
            // What follows may overwrite what is being sent.
            current.waitEvent(side.record());
        }
    }

    /** Waits for the parts from all ranks, this one's being there, and reduces them. */
    private void reduceSlots(
            OpStream current, Slots slots, NDArray result, ReduceOp op, int epoch) {
        List<NDArray> all = new ArrayList<>();
        for (int source = 0; source < worldSize; source++) {
            if (source != rank) {
                current.waitSignal(source, epoch);
            }
            all.add(slots.slot(source));
        }
        current.reduce(result, all, op);
    }

    /** Makes this rank's part of what one rank is to get. */
    @FunctionalInterface
    public interface PartProducer {

        /**
         * Enqueues work.
         *
         * @param stream where to
         * @param rank the rank that gets the part
         * @param part where the part goes
         */
        void produce(OpStream stream, int rank, NDArray part);
    }

    /**
     * Produce and scatter: every rank makes a part for each rank; each reduces the parts made for
     * it, in rank order.
     *
     * @param result where the reduced parts go; the same shape on all ranks
     * @param type its element type
     * @param op how to reduce
     * @param producer called once for each rank, this one last
     */
    public void produceAndScatter(
            NDArray result, ScalarType type, ReduceOp op, PartProducer producer) {
        int epoch = buffers.epoch(operation);
        Slots slots = new Slots(buffers, manager, rank, result.getShape(), type, epoch);
        try (OpStream current = currentStream();
                OpStream side = sideStream()) {
            side.waitEvent(current.record());
            // Two parts at a time: one is computed while the other is pushed.
            NDArray[] parts = new NDArray[2];
            OpStream.Event[] pushed = new OpStream.Event[2];
            for (int step = 1; step < worldSize; step++) {
                int peer = (rank + step) % worldSize;
                int turn = step & 1;
                if (parts[turn] == null) {
                    parts[turn] = Torch.empty(manager, result.getShape(), type);
                } else {
                    current.waitEvent(pushed[turn]);
                }
                producer.produce(current, peer, parts[turn]);
                side.waitEvent(current.record());
                side.put(peer, slots.offset(rank), parts[turn]);
                side.signal(peer, epoch);
                if (step + 2 < worldSize) {
                    pushed[turn] = side.record();
                }
            }
            producer.produce(current, rank, slots.slot(rank));
            agreeBeforeWaits(current, side);
            reduceSlots(current, slots, result, op, epoch);
            // What follows may overwrite what is being sent.
            current.waitEvent(side.record());
        }
    }
}
