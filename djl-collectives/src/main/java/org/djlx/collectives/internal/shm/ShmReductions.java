/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import java.util.List;
import org.djlx.collectives.Operation;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.ScalarType;

/**
 * The collectives of one rank that reduce, over staging memory.
 *
 * <p>A rank exposes only what others need of it: the part that it reduces itself it reads where it
 * is. Where the result goes decides in which order two operands meet ({@link Reducer}), which shows
 * in the signs of zeros and in NaNs: {@link #reduce} has it in the same places as {@link
 * #allReduce}, so that it has the same bits. One instance serves one rank; operations run one at a
 * time.
 */
final class ShmReductions {

    // Below, every rank reduces the whole tensor: one step instead of two.
    private static final long ONE_SHOT_BYTES = 4 << 10;

    private final Steps steps;
    private final Reducer reducer;
    private final Copies copies;
    private final int rank;
    private final int worldSize;

    ShmReductions(Steps steps, Reducer reducer, Copies copies, int rank, int worldSize) {
        this.steps = steps;
        this.reducer = reducer;
        this.copies = copies;
        this.rank = rank;
        this.worldSize = worldSize;
    }

    /**
     * Reduce-scatter.
     *
     * @param inputs the address of the tensor for each rank
     */
    void reduceScatter(Operation operation, HostTensor output, long[] inputs, ReduceOp op) {
        steps.begin(operation);
        ScalarType type = output.type();
        long itemSize = type.itemSize();
        long slot = steps.slotSize(0);
        long chunk = slot / itemSize;
        long done = 0;
        do {
            long count = Math.min(chunk, output.count() - done);
            for (int peer = 0; peer < worldSize; peer++) {
                if (peer != rank) {
                    copies.copy(
                            steps.mine() + peer * slot,
                            inputs[peer] + done * itemSize,
                            count * itemSize);
                }
            }
            steps.synchronize();
            // The slots for this rank are read by nobody else, so they may be overwritten.
            reducer.reduce(
                    output.address() + done * itemSize,
                    steps.ofOthers(rank * slot, inputs[rank] + done * itemSize),
                    count,
                    type,
                    op);
            done += count;
        } while (done < output.count());
    }

    void allReduce(Operation operation, HostTensor tensor, ReduceOp op) {
        if (tensor.byteSize() <= ONE_SHOT_BYTES) {
            operation.setAlgorithm("one-shot");
            oneShot(operation, tensor, op, true);
        } else {
            operation.setAlgorithm("two-shot");
            allReduceParts(operation, tensor, op);
        }
    }

    /** All-reduces several tensors; those that together are as small as one take one step. */
    void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        int next = 0;
        while (next < tensors.size()) {
            int end = next;
            long size = 0;
            while (end < tensors.size() && size + aligned(tensors.get(end)) <= ONE_SHOT_BYTES) {
                size += aligned(tensors.get(end));
                end++;
            }
            if (end > next + 1) {
                oneShot(operation, tensors.subList(next, end), op);
                next = end;
            } else {
                allReduce(operation, tensors.get(next), op);
                next++;
            }
        }
    }

    private static long aligned(HostTensor tensor) {
        return (tensor.byteSize() + Steps.ALIGNMENT - 1) / Steps.ALIGNMENT * Steps.ALIGNMENT;
    }

    private void oneShot(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        operation.setAlgorithm("one-shot");
        steps.begin(operation);
        long mine = steps.mine();
        long offset = 0;
        for (HostTensor tensor : tensors) {
            copies.copy(mine + offset, tensor.address(), tensor.byteSize());
            offset += aligned(tensor);
        }
        steps.synchronize();
        offset = 0;
        for (HostTensor tensor : tensors) {
            reducer.reduce(
                    tensor.address(),
                    steps.ofOthers(offset, mine + offset),
                    tensor.count(),
                    tensor.type(),
                    op);
            offset += aligned(tensor);
        }
    }

    void reduce(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        if (tensor.byteSize() <= ONE_SHOT_BYTES) {
            oneShot(operation, tensor, op, rank == root);
        } else {
            reduceParts(operation, tensor, root, op);
        }
    }

    /** Whoever wants the result reduces everything, from what all have staged. */
    private void oneShot(Operation operation, HostTensor tensor, ReduceOp op, boolean wanted) {
        steps.begin(operation);
        long own = worldSize == 1 ? tensor.address() : steps.mine();
        copies.copyInPlace(own, tensor.address(), tensor.byteSize());
        steps.synchronize();
        if (wanted) {
            reducer.reduce(
                    tensor.address(), steps.ofOthers(0, own), tensor.count(), tensor.type(), op);
        }
    }

    /** Every rank reduces its part of each chunk, then all gather the parts. */
    private void allReduceParts(Operation operation, HostTensor tensor, ReduceOp op) {
        steps.begin(operation);
        ScalarType type = tensor.type();
        long itemSize = type.itemSize();
        long chunk = steps.chunkSize() / itemSize;
        Parts parts = new Parts(itemSize);
        long done = 0;
        do {
            parts.count = Math.min(chunk, tensor.count() - done);
            long target = tensor.address() + done * itemSize;
            exposeOthersParts(parts, target);
            steps.synchronize();

            long own = target + parts.begin(rank);
            reducer.reduce(
                    own,
                    steps.ofOthers(parts.begin(rank), own),
                    parts.size(rank) / itemSize,
                    type,
                    op);
            copies.copy(steps.mine() + parts.begin(rank), own, parts.size(rank));
            steps.synchronize();
            for (int peer = 0; peer < worldSize; peer++) {
                if (peer != rank) {
                    collect(parts, peer, target);
                }
            }
            done += parts.count;
        } while (done < tensor.count());
    }

    /** Every rank reduces its part of each chunk, then the root gathers the parts. */
    private void reduceParts(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        steps.begin(operation);
        ScalarType type = tensor.type();
        long itemSize = type.itemSize();
        long chunk = steps.chunkSize() / itemSize;
        Parts parts = new Parts(itemSize);
        long done = 0;
        do {
            parts.count = Math.min(chunk, tensor.count() - done);
            long target = tensor.address() + done * itemSize;
            exposeOthersParts(parts, target);
            steps.synchronize();

            // In place, as in allReduce. Only the root's tensor may be changed.
            long own = (rank == root ? target : steps.mine()) + parts.begin(rank);
            copies.copyInPlace(own, target + parts.begin(rank), parts.size(rank));
            reducer.reduce(
                    own,
                    steps.ofOthers(parts.begin(rank), own),
                    parts.size(rank) / itemSize,
                    type,
                    op);
            steps.synchronize();
            for (int peer = 0; rank == root && peer < worldSize; peer++) {
                if (peer != rank) {
                    collect(parts, peer, target);
                }
            }
            done += parts.count;
        } while (done < tensor.count());
    }

    private void exposeOthersParts(Parts parts, long source) {
        long before = parts.begin(rank);
        long after = parts.begin(rank + 1);
        copies.copy(steps.mine(), source, before);
        copies.copy(steps.mine() + after, source + after, parts.begin(worldSize) - after);
    }

    private void collect(Parts parts, int peer, long target) {
        long begin = parts.begin(peer);
        copies.copy(target + begin, steps.of(peer) + begin, parts.size(peer));
    }

    /** How the elements of a chunk are divided among the ranks; parts begin on cache lines. */
    private final class Parts {

        private final long itemSize;
        private long count;

        Parts(long itemSize) {
            this.itemSize = itemSize;
        }

        /** Where a rank's part begins, in bytes; that after the last is where the chunk ends. */
        long begin(int part) {
            if (part == worldSize) {
                return count * itemSize;
            }
            return count * part / worldSize * itemSize / Steps.ALIGNMENT * Steps.ALIGNMENT;
        }

        long size(int part) {
            return begin(part + 1) - begin(part);
        }
    }
}
