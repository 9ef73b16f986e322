// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.List;
import org.djlx.collectives.internal.shm.Steps.Piece;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.cpu.HostCollectives;
import org.djlx.collectives.spi.cpu.HostTensor;
import org.djlx.nativeops.host.AtomicBuffer;

/**
 * Collectives that move data through staging memory. A rank's data for itself is copied from input
 * to output directly, or not at all if both are the same memory. One instance serves one rank and
 * runs one operation at a time.
 */
abstract class ShmMoves implements HostCollectives {

    final Steps steps;
    final Copies copies;
    final int rank;
    final int worldSize;

    ShmMoves(Steps steps, Copies copies, int rank, int worldSize) {
        this.steps = steps;
        this.copies = copies;
        this.rank = rank;
        this.worldSize = worldSize;
    }

    @Override
    public void begin(Operation operation) {
        steps.publish(operation);
    }

    @Override
    public void barrier(Operation operation) {
        steps.begin(operation);
        steps.synchronize();
    }

    @Override
    public void broadcast(Operation operation, HostTensor tensor, int root) {
        steps.run(
                operation,
                List.of(tensor),
                steps.chunkSize(),
                piece -> stage(piece, rank == root),
                piece -> {
                    if (rank != root) {
                        long staged = steps.of(root) + piece.at();
                        copies.copy(piece.address(), staged, piece.byteSize());
                    }
                });
    }

    @Override
    public void allGather(Operation operation, List<long[]> outputs, List<HostTensor> inputs) {
        steps.run(
                operation,
                inputs,
                steps.chunkSize(),
                piece -> stage(piece, true),
                piece -> collect(piece, outputs.get(piece.index())));
    }

    @Override
    public void gather(Operation operation, long[] outputs, HostTensor input, int root) {
        steps.run(
                operation,
                List.of(input),
                steps.chunkSize(),
                piece -> stage(piece, rank != root),
                piece -> {
                    if (rank == root) {
                        collect(piece, outputs);
                    }
                });
    }

    /** Stages a piece, if other ranks read it. */
    final void stage(Piece piece, boolean othersRead) {
        if (othersRead && worldSize > 1) {
            copies.copy(steps.mine() + piece.at(), piece.address(), piece.byteSize());
        }
    }

    /** Copies the same piece of all ranks, each to its output. */
    private void collect(Piece piece, long[] outputs) {
        for (int peer = 0; peer < worldSize; peer++) {
            long output = outputs[peer] + piece.offset();
            if (peer == rank) {
                copies.copyInPlace(output, piece.address(), piece.byteSize());
            } else {
                copies.copy(output, steps.of(peer) + piece.at(), piece.byteSize());
            }
        }
    }

    @Override
    public void scatter(Operation operation, HostTensor output, long[] inputs, int root) {
        long slot = steps.slotSize(0);
        steps.run(
                operation,
                List.of(output),
                slot,
                piece -> {
                    if (rank == root) {
                        stageSlots(piece, inputs);
                    }
                },
                piece -> {
                    if (rank == root) {
                        long own = inputs[root] + piece.offset();
                        copies.copyInPlace(piece.address(), own, piece.byteSize());
                    } else {
                        long staged = steps.of(root) + rank * slot + piece.at();
                        copies.copy(piece.address(), staged, piece.byteSize());
                    }
                });
    }

    /** Stages, in a slot for each other rank, its piece of its input. */
    final void stageSlots(Piece piece, long[] inputs) {
        long slot = steps.slotSize(0);
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank) {
                copies.copy(
                        steps.mine() + peer * slot + piece.at(),
                        inputs[peer] + piece.offset(),
                        piece.byteSize());
            }
        }
    }

    /**
     * In the first step the ranks exchange the sizes that they send and expect; all ranks fail if
     * any pair differs.
     */
    @Override
    public void allToAll(Operation operation, Extent[] outputs, Extent[] inputs) {
        steps.begin(operation);
        Sizes sizes = new Sizes();
        long slot = steps.slotSize(Sizes.byteSize(worldSize));
        sizes.put(inputs, outputs);
        long longest = 0;
        long offset = 0;
        do {
            long base = steps.mine() + Sizes.byteSize(worldSize);
            for (int peer = 0; peer < worldSize; peer++) {
                if (peer != rank) {
                    copies.copy(
                            base + peer * slot,
                            inputs[peer].address() + offset,
                            inputs[peer].within(offset, slot));
                }
            }
            steps.synchronize();
            if (offset == 0) {
                longest = sizes.checkAll(operation);
                copies.copyInPlace(
                        outputs[rank].address(), inputs[rank].address(), inputs[rank].size());
            }
            for (int peer = 0; peer < worldSize; peer++) {
                if (peer != rank) {
                    copies.copy(
                            outputs[peer].address() + offset,
                            steps.of(peer) + Sizes.byteSize(worldSize) + rank * slot,
                            outputs[peer].within(offset, slot));
                }
            }
            offset += slot;
        } while (offset < longest);
    }

    /**
     * The header of the first step: bytes sent to each rank, then bytes expected from each rank.
     */
    private final class Sizes {

        static long byteSize(int worldSize) {
            return Steps.aligned(ShmSegment.headerSize(worldSize));
        }

        void put(Extent[] inputs, Extent[] outputs) {
            AtomicBuffer header = steps.myHeader();
            for (int peer = 0; peer < worldSize; peer++) {
                header.putLong(peer * Long.BYTES, inputs[peer].size());
                header.putLong((worldSize + peer) * Long.BYTES, outputs[peer].size());
            }
        }

        private long sent(int from, int to) {
            return steps.headerOf(from).getLong(to * Long.BYTES);
        }

        private long expected(int from, int to) {
            return steps.headerOf(to).getLong((worldSize + from) * Long.BYTES);
        }

        /** Returns the largest size between two different ranks; throws if any pair differs. */
        long checkAll(Operation operation) {
            long longest = 0;
            boolean match = true;
            for (int from = 0; from < worldSize; from++) {
                for (int to = 0; to < worldSize; to++) {
                    long sent = sent(from, to);
                    longest = from == to ? longest : Math.max(longest, sent);
                    match &= sent == expected(from, to);
                }
            }
            if (!match) {
                HostCollectives.requireSizes(operation, worldSize, this::sent, this::expected);
            }
            return longest;
        }
    }
}
