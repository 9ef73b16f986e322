// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;

/**
 * Orders copies, signals and computation of fused operators and low-contention collectives, on one
 * rank of a group. Uses {@link P2pStream}, so it works with any backend that has P2P buffers.
 *
 * <p>Ranks push: on a side stream, a rank copies data into a slot of the peer that needs the data,
 * and signals the peer. The current stream computes meanwhile. (Flux, Chang et al. 2024, and
 * PyTorch's async tensor parallelism have the same structure, but pull.)
 *
 * <ul>
 *   <li>An all-gather computes with this rank's shard first; a reduce-scatter computes this rank's
 *       part last.
 *   <li>Ranks push to their peers in rotated order, so no two ranks push to the same peer at the
 *       same time.
 *   <li>If the parts of all ranks do not {@linkplain Slots#fit fit} into the buffers, the side
 *       stream sends a part in rounds. Each round has a barrier of all ranks, and copies the
 *       received data to other memory of this rank.
 *   <li>With and without rounds, matmuls are the same, so results have the same bits. Exception: on
 *       GPUs, shards of up to 4 KiB that fit are multiplied as one matrix.
 * </ul>
 *
 * <p>Memory is given by address and is contiguous. Call the methods within {@link
 * ProcessGroup#execute}.
 */
public final class Pipeline {

    // One signal word for each pair of ranks is enough: an operation signals it once.
    private static final int CHANNEL = 0;

    // Up to this many bytes a part, pipelining does not pay: smaller matmuls do not get faster.
    private static final long SMALL = 1 << 20;

    private static final long TINY = 4096;

    private final P2pBuffers buffers;
    private final int rank;
    private final int worldSize;

    public Pipeline(ProcessGroup group) {
        this.buffers = group.requireP2pBuffers();
        this.rank = group.rank();
        this.worldSize = group.worldSize();
    }

    /**
     * Waits for the agreement of all ranks on the operation. Call it after the sends are enqueued,
     * and before the first wait for a peer.
     */
    private void agreeBeforeWaits(Operation operation, P2pStream current, P2pStream side) {
        buffers.awaitAgreement(operation);
        if (current.isRecorded()) {
            // CUDA may run branches of a graph one after the other: sends must come before waits.
            current.waitEvent(side.record());
        }
    }

    private interface Body {
        void run(long epoch, P2pStream current, P2pStream side);
    }

    /**
     * Opens the streams, and runs the operation. Then the current stream waits for the sends,
     * because later work may overwrite the sent data.
     */
    private void run(Operation operation, NDArray[] used, Body body) {
        long epoch = buffers.epoch(operation);
        try (P2pStream current = buffers.currentStream(operation);
                P2pStream side = buffers.sideStream(operation)) {
            body.run(epoch, current, side);
            current.waitEvent(side.record());
            current.keepAlive(used);
        }
    }

    @FunctionalInterface
    public interface ShardConsumer {

        /** Enqueues work on the current stream. */
        void consume(P2pStream stream, int rank, long shard);
    }

    /**
     * Pipelined all-gather: calls the consumer with the shard of each rank, after the shard has
     * arrived.
     *
     * @param byteSize its size, the same on all ranks
     * @param gathered the address of memory for the shards of all ranks, contiguous in rank order;
     *     used only if the slots {@linkplain Slots#hasRounds have rounds}
     * @param consumer called once for each rank, this rank first
     */
    public void gatherAndConsume(
            Operation operation,
            Slots slots,
            long shard,
            long byteSize,
            long gathered,
            ShardConsumer consumer,
            NDArray... used) {
        if (slots.hasRounds()) {
            gatherInRounds(operation, slots, shard, byteSize, gathered, consumer, used);
            return;
        }
        run(
                operation,
                used,
                (epoch, current, side) -> {
                    P2pStream.Event[] pushed =
                            push(current, side, epoch, slots.offset(epoch, rank), shard, byteSize);
                    consumer.consume(current, rank, shard);
                    buffers.awaitAgreement(operation);
                    for (int step = 1; step < worldSize; step++) {
                        int peer = (rank + step) % worldSize;
                        if (current.isRecorded()) {
                            // CUDA may run branches of a graph one after the other: a rank's send
                            // of a step must come before its wait of that step.
                            current.waitEvent(pushed[step]);
                        }
                        current.waitSignal(peer, CHANNEL, epoch);
                        consumer.consume(current, peer, slot(slots, epoch, peer));
                    }
                });
    }

    private void gatherInRounds(
            Operation operation,
            Slots slots,
            long shard,
            long byteSize,
            long gathered,
            ShardConsumer consumer,
            NDArray... used) {
        run(
                operation,
                used,
                (epoch, current, side) -> {
                    side.waitEvent(current.record());
                    int source = rank;
                    long part = shard;
                    for (int step = 1; step < worldSize; step++) {
                        int sender = (rank + step) % worldSize;
                        long place = gathered + sender * byteSize;
                        exchange(side, slots, epoch, step, -step, shard, place, byteSize);
                        P2pStream.Event arrived = side.record();
                        consumer.consume(current, source, part);
                        current.waitEvent(arrived);
                        source = sender;
                        part = place;
                    }
                    consumer.consume(current, source, part);
                });
    }

    /**
     * Sends a part to the rank at a distance, in rounds, and receives a part from the rank at the
     * opposite distance. Rounds use two windows in turn: round n may overwrite the window of round
     * n - 2, because the receiver copies that window before the barrier of round n - 1.
     *
     * @param step the number of the exchange within the operation, from 1
     * @param distance the receiver's rank minus this rank, modulo the world size
     */
    private void exchange(
            P2pStream side,
            Slots slots,
            long epoch,
            int step,
            int distance,
            long source,
            long destination,
            long byteSize) {
        int receiver = Math.floorMod(rank + distance, worldSize);
        long rounds = (byteSize + slots.window() - 1) / slots.window();
        for (long i = 0; i < rounds; i++) {
            long done = i * slots.window();
            long size = Math.min(slots.window(), byteSize - done);
            long offset = slots.windowOffset(epoch, (step - 1) * rounds + i);
            side.put(receiver, offset, source + done, size);
            side.barrier();
            side.copy(destination + done, buffers.address(rank, offset), size);
        }
    }

    /**
     * Pushes this rank's shard to the same offset on all other ranks, on the side stream. Returns
     * an event after the push of each step; null for a stream that is not recorded.
     */
    private P2pStream.Event[] push(
            P2pStream current, P2pStream side, long epoch, long offset, long shard, long byteSize) {
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

    @FunctionalInterface
    public interface WholeConsumer {

        /** Enqueues work on the current stream; the shards are contiguous in rank order. */
        void consume(P2pStream stream, long shards);
    }

    /**
     * Returns whether parts are so small that, on the CPU, a single matmul before or after all
     * communication is faster than a pipeline.
     */
    public static boolean isSmall(long byteSize) {
        return byteSize <= SMALL;
    }

    /**
     * Returns whether slots for that many bytes are adjacent without gaps. A matmul can then read
     * them as one matrix.
     */
    public static boolean isWithoutGaps(long byteSize) {
        return byteSize % Slots.ALIGNMENT == 0;
    }

    /**
     * Returns whether parts are so small that, on GPUs, one exchange kernel is faster than the host
     * can enqueue copies.
     */
    public static boolean isTiny(P2pBuffers buffers, long byteSize) {
        return buffers.worldSize() > 1
                && byteSize <= TINY
                && isWithoutGaps(byteSize)
                && Slots.fit(buffers, byteSize);
    }

    /**
     * All-gather into the slots, then one computation. The slots must be {@linkplain #isWithoutGaps
     * without gaps}.
     */
    public void gatherThenConsume(
            Operation operation,
            Slots slots,
            long shard,
            long byteSize,
            WholeConsumer consumer,
            NDArray... used) {
        if (buffers.exchange(operation, slots.offset(1, rank), shard, byteSize)) {
            try (P2pStream current = buffers.currentStream(operation)) {
                consumer.consume(current, slot(slots, 1, 0));
                current.keepAlive(used);
            }
            return;
        }
        run(
                operation,
                used,
                (epoch, current, side) -> {
                    push(current, side, epoch, slots.offset(epoch, rank), shard, byteSize);
                    current.copy(slot(slots, epoch, rank), shard, byteSize);
                    agreeBeforeWaits(operation, current, side);
                    current.waitSignals(CHANNEL, epoch);
                    consumer.consume(current, slot(slots, epoch, 0));
                });
    }

    /** Returns the address of this rank's slot for a source rank. */
    private long slot(Slots slots, long epoch, int source) {
        return buffers.address(rank, slots.offset(epoch, source));
    }

    @FunctionalInterface
    public interface PartReducer {

        /**
         * Enqueues work on the current stream.
         *
         * @param first the address of rank 0's part
         * @param distance from one rank's part to the next, in bytes
         */
        void reduce(P2pStream stream, long first, long distance);
    }

    /**
     * Reduce-scatter of existing parts: each rank pushes one part to every rank, and reduces the
     * parts that it received.
     *
     * @param parts the address of the parts, one for each rank, contiguous in rank order
     * @param received as for {@link #produceAndScatter}
     */
    public void scatterAndReduce(
            Operation operation,
            Slots slots,
            long parts,
            long byteSize,
            long received,
            PartReducer reducer,
            NDArray... used) {
        run(
                operation,
                used,
                (epoch, current, side) -> {
                    side.waitEvent(current.record());
                    for (int step = 1; step < worldSize; step++) {
                        long part = parts + (rank + step) % worldSize * byteSize;
                        send(side, slots, epoch, step, part, byteSize, received);
                    }
                    long own = received(slots, epoch, received, rank);
                    current.copy(own, parts + rank * byteSize, byteSize);
                    reduce(operation, current, side, slots, epoch, received, reducer);
                });
    }

    /** Sends a part to the rank that is {@code step} ranks away. */
    private void send(
            P2pStream side,
            Slots slots,
            long epoch,
            int step,
            long part,
            long byteSize,
            long received) {
        if (slots.hasRounds()) {
            int sender = Math.floorMod(rank - step, worldSize);
            long place = received(slots, epoch, received, sender);
            exchange(side, slots, epoch, step, step, part, place, byteSize);
            return;
        }
        int peer = (rank + step) % worldSize;
        side.put(peer, slots.offset(epoch, rank), part, byteSize);
        side.signal(peer, CHANNEL, epoch);
    }

    /** Returns the address of the part that this rank receives from a rank. */
    private long received(Slots slots, long epoch, long received, int source) {
        return slots.hasRounds()
                ? received + source * slots.distance()
                : slot(slots, epoch, source);
    }

    /** Waits for the parts of all other ranks, and reduces all parts. */
    private void reduce(
            Operation operation,
            P2pStream current,
            P2pStream side,
            Slots slots,
            long epoch,
            long received,
            PartReducer reducer) {
        if (slots.hasRounds()) {
            current.waitEvent(side.record());
        } else {
            agreeBeforeWaits(operation, current, side);
            current.waitSignals(CHANNEL, epoch);
        }
        reducer.reduce(current, received(slots, epoch, received, 0), slots.distance());
    }

    @FunctionalInterface
    public interface PartProducer {

        /** Enqueues work on the current stream. */
        void produce(int rank, long part);
    }

    /**
     * Returns the number of staging buffers of {@link #produceAndScatter}: two, to compute one part
     * while the other is pushed; with fewer than two peers, one for each peer.
     */
    public static int stagingBuffers(int worldSize) {
        return Math.min(2, worldSize - 1);
    }

    /**
     * Pipelined reduce-scatter: each rank computes one part for every rank, pushes it there, and
     * reduces the parts that it received.
     *
     * @param staging the addresses of {@link #stagingBuffers} buffers for a part each
     * @param received the address of memory for the parts of all ranks, {@link Slots#distance}
     *     bytes apart in rank order; used only if the slots {@linkplain Slots#hasRounds have
     *     rounds}
     * @param producer called once for each rank, this rank last
     */
    public void produceAndScatter(
            Operation operation,
            Slots slots,
            long[] staging,
            long byteSize,
            long received,
            PartProducer producer,
            PartReducer reducer,
            NDArray... used) {
        run(
                operation,
                used,
                (epoch, current, side) -> {
                    P2pStream.Event[] pushed = new P2pStream.Event[2];
                    for (int step = 1; step < worldSize; step++) {
                        int peer = (rank + step) % worldSize;
                        int buffer = (step - 1) & 1;
                        if (pushed[buffer] != null) {
                            current.waitEvent(pushed[buffer]);
                        }
                        producer.produce(peer, staging[buffer]);
                        side.waitEvent(current.record());
                        send(side, slots, epoch, step, staging[buffer], byteSize, received);
                        if (step + 2 < worldSize) {
                            pushed[buffer] = side.record();
                        }
                    }
                    producer.produce(rank, received(slots, epoch, received, rank));
                    reduce(operation, current, side, slots, epoch, received, reducer);
                });
    }
}
