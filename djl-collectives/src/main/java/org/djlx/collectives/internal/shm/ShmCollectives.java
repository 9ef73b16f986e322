// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.shm.Steps.Piece;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.cpu.HostTensor;
import org.djlx.collectives.spi.cpu.Reducer;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The collectives of one rank through staging memory: here those that reduce. A rank stages only
 * the data that other ranks need. It reads its own part in place.
 *
 * <p>The address of the result decides the order of two operands in the {@link Reducer}, which
 * affects the sign of zeros and the payload of NaNs. {@link #reduce} uses the same result positions
 * as {@link #allReduce}, so both give the same bits.
 *
 * <p>One instance serves one rank and runs one operation at a time.
 */
final class ShmCollectives extends ShmMoves {

    // Up to this size every rank reduces the whole tensor: one step instead of two.
    private static final long ONE_SHOT_BYTES = 4 << 10;

    private static final int ALL = -1; // in place of a root: all ranks need the result

    private final Reducer reducer;

    ShmCollectives(Steps steps, Reducer reducer, Copies copies, int rank, int worldSize) {
        super(steps, copies, rank, worldSize);
        this.reducer = reducer;
    }

    @Override
    public void reduceScatter(
            Operation operation, List<HostTensor> outputs, List<long[]> inputs, ReduceOp op) {
        long slot = steps.slotSize(0);
        steps.run(
                operation,
                outputs,
                slot,
                piece -> stageSlots(piece, inputs.get(piece.index())),
                piece -> {
                    // Only this rank reads its slots, so the reducer may overwrite them.
                    long own = inputs.get(piece.index())[rank] + piece.offset();
                    reduce(piece, steps.ofOthers(rank * slot + piece.at(), own), op);
                });
    }

    /** Gives the same bits as separate all-reduces. */
    @Override
    public void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        reduce(operation, tensors, ALL, op);
    }

    @Override
    public void reduce(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        reduce(operation, List.of(tensor), root, op);
    }

    /**
     * One-shot, in one step: all ranks stage their tensors; each rank that needs the result reduces
     * everything. Two-shot: every rank reduces its part of each piece; then those that need the
     * result gather the parts.
     */
    private void reduce(Operation operation, List<HostTensor> tensors, int root, ReduceOp op) {
        boolean wanted = root == ALL || root == rank;
        steps.run(
                operation,
                tensors,
                steps.chunkSize(),
                pieces -> {
                    boolean inParts = false;
                    for (Piece piece : pieces) {
                        if (isInParts(piece)) {
                            inParts = true;
                            stagePeerParts(piece);
                        } else {
                            stage(piece, true);
                        }
                    }
                    operation.setAlgorithm(inParts ? "two-shot" : "one-shot");
                    steps.synchronize();
                    for (Piece piece : pieces) {
                        if (isInParts(piece)) {
                            reduceOwnPart(piece, root, op);
                        } else if (wanted) {
                            long own = steps.of(rank) + piece.at();
                            own = worldSize == 1 ? piece.address() : own;
                            reduce(piece, steps.ofOthers(piece.at(), own), op);
                        }
                    }
                    if (inParts) {
                        steps.synchronize();
                        pieces.stream()
                                .filter(piece -> wanted && isInParts(piece))
                                .forEach(this::gatherPeerParts);
                    }
                });
    }

    private void reduce(Piece piece, long[] contributions, ReduceOp op) {
        reducer.reduce(piece.address(), contributions, piece.count(), piece.tensor().type(), op);
    }

    private static boolean isInParts(Piece piece) {
        return piece.tensor().byteSize() > ONE_SHOT_BYTES;
    }

    // Parts have the same positions within a piece and within its copy in staging memory.

    /** Stages the parts that other ranks reduce. */
    private void stagePeerParts(Piece piece) {
        long before = begin(piece, rank);
        long after = begin(piece, rank + 1);
        long mine = steps.mine() + piece.at();
        copies.copy(mine, piece.address(), before);
        copies.copy(mine + after, piece.address() + after, piece.byteSize() - after);
    }

    /**
     * Reduces this rank's part and stages the result. Result positions are the same in reduce as in
     * allReduce; but only the root's tensor may change.
     */
    private void reduceOwnPart(Piece piece, int root, ReduceOp op) {
        long begin = begin(piece, rank);
        long size = begin(piece, rank + 1) - begin;
        long staged = steps.mine() + piece.at() + begin;
        long own = piece.address() + begin;
        if (root != ALL && root != rank) {
            copies.copy(staged, own, size);
            own = staged;
        }
        ScalarType type = piece.tensor().type();
        long[] contributions = steps.ofOthers(piece.at() + begin, own);
        reducer.reduce(own, contributions, size / type.itemSize(), type, op);
        if (root == ALL) {
            copies.copy(staged, own, size);
        }
    }

    /** Copies the parts that other ranks have reduced from staging memory. */
    private void gatherPeerParts(Piece piece) {
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank) {
                long begin = begin(piece, peer);
                copies.copy(
                        piece.address() + begin,
                        steps.of(peer) + piece.at() + begin,
                        begin(piece, peer + 1) - begin);
            }
        }
    }

    /**
     * Returns where a rank's part of a piece begins, in bytes; for the world size, the piece's end.
     * Parts start on cache lines.
     */
    private long begin(Piece piece, int part) {
        if (part == worldSize) {
            return piece.byteSize();
        }
        long itemSize = piece.tensor().type().itemSize();
        return piece.count() * part / worldSize * itemSize / Steps.ALIGNMENT * Steps.ALIGNMENT;
    }
}
