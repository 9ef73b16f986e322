/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.torch.ScalarType;

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

    /**
     * Reduce-scatter of several tensors.
     *
     * @param inputs for each output, the address of the tensor for each rank
     */
    void reduceScatter(
            Operation operation, List<HostTensor> outputs, List<long[]> inputs, ReduceOp op) {
        int next = 0;
        while (next < outputs.size()) {
            int end = Steps.endOfStep(outputs, next, steps.slotSize(0));
            if (end == next + 1) {
                reduceScatter(operation, outputs.get(next), inputs.get(next), op);
            } else {
                reduceScatterTogether(
                        operation, outputs.subList(next, end), inputs.subList(next, end), op);
            }
            next = end;
        }
    }

    private void reduceScatterTogether(
            Operation operation, List<HostTensor> outputs, List<long[]> inputs, ReduceOp op) {
        steps.begin(operation);
        long slot = steps.slotSize(0);
        long offset = 0;
        for (int i = 0; i < outputs.size(); i++) {
            long byteSize = outputs.get(i).byteSize();
            for (int peer = 0; peer < worldSize; peer++) {
                if (peer != rank) {
                    copies.copy(steps.mine() + peer * slot + offset, inputs.get(i)[peer], byteSize);
                }
            }
            offset += Steps.aligned(byteSize);
        }
        steps.synchronize();
        offset = 0;
        for (int i = 0; i < outputs.size(); i++) {
            HostTensor output = outputs.get(i);
            reducer.reduce(
                    output.address(),
                    steps.ofOthers(rank * slot + offset, inputs.get(i)[rank]),
                    output.count(),
                    output.type(),
                    op);
            offset += Steps.aligned(output.byteSize());
        }
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

    /** All-reduces several tensors, with the same bits as one after the other. */
    void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        int next = 0;
        while (next < tensors.size()) {
            int end = Steps.endOfStep(tensors, next, steps.chunkSize());
            if (end == next + 1) {
                allReduce(operation, tensors.get(next), op);
            } else {
                allReduceTogether(operation, tensors.subList(next, end), op);
            }
            next = end;
        }
    }

    /** All-reduces tensors in one step, or two if one of them is reduced in parts. */
    private void allReduceTogether(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        steps.begin(operation);
        boolean inParts = false;
        long offset = 0;
        for (HostTensor tensor : tensors) {
            if (tensor.byteSize() <= ONE_SHOT_BYTES) {
                copies.copy(steps.mine() + offset, tensor.address(), tensor.byteSize());
            } else {
                inParts = true;
                exposeOthersParts(parts(tensor), tensor.address(), offset);
            }
            offset += Steps.aligned(tensor.byteSize());
        }
        steps.synchronize();
        operation.setAlgorithm(inParts ? "two-shot" : "one-shot");

        offset = 0;
        for (HostTensor tensor : tensors) {
            if (tensor.byteSize() <= ONE_SHOT_BYTES) {
                reducer.reduce(
                        tensor.address(),
                        steps.ofOthers(offset, steps.of(rank) + offset),
                        tensor.count(),
                        tensor.type(),
                        op);
            } else {
                reduceOwnPart(parts(tensor), tensor.address(), offset, op);
            }
            offset += Steps.aligned(tensor.byteSize());
        }
        if (!inParts) {
            return;
        }
        steps.synchronize();
        offset = 0;
        for (HostTensor tensor : tensors) {
            if (tensor.byteSize() > ONE_SHOT_BYTES) {
                collectOthersParts(parts(tensor), tensor.address(), offset);
            }
            offset += Steps.aligned(tensor.byteSize());
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
        long chunk = steps.chunkSize() / type.itemSize();
        long done = 0;
        do {
            Parts parts = new Parts(Math.min(chunk, tensor.count() - done), type);
            long target = tensor.address() + done * type.itemSize();
            exposeOthersParts(parts, target, 0);
            steps.synchronize();
            reduceOwnPart(parts, target, 0, op);
            steps.synchronize();
            collectOthersParts(parts, target, 0);
            done += parts.count;
        } while (done < tensor.count());
    }

    /** Every rank reduces its part of each chunk, then the root gathers the parts. */
    private void reduceParts(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        steps.begin(operation);
        ScalarType type = tensor.type();
        long chunk = steps.chunkSize() / type.itemSize();
        long done = 0;
        do {
            Parts parts = new Parts(Math.min(chunk, tensor.count() - done), type);
            long target = tensor.address() + done * type.itemSize();
            exposeOthersParts(parts, target, 0);
            steps.synchronize();

            // In place, as in allReduce. Only the root's tensor may be changed.
            long own = (rank == root ? target : steps.mine()) + parts.begin(rank);
            copies.copyInPlace(own, target + parts.begin(rank), parts.size(rank));
            reduce(parts, own, 0, op);
            steps.synchronize();
            if (rank == root) {
                collectOthersParts(parts, target, 0);
            }
            done += parts.count;
        } while (done < tensor.count());
    }

    // A part is at the same place in staging memory as in its chunk, which begins at an offset.

    private void exposeOthersParts(Parts parts, long source, long offset) {
        long before = parts.begin(rank);
        long after = parts.begin(rank + 1);
        long mine = steps.mine() + offset;
        copies.copy(mine, source, before);
        copies.copy(mine + after, source + after, parts.begin(worldSize) - after);
    }

    /** Reduces this rank's part in place, and exposes the result. */
    private void reduceOwnPart(Parts parts, long target, long offset, ReduceOp op) {
        long own = target + parts.begin(rank);
        reduce(parts, own, offset, op);
        copies.copy(steps.mine() + offset + parts.begin(rank), own, parts.size(rank));
    }

    private void reduce(Parts parts, long own, long offset, ReduceOp op) {
        reducer.reduce(
                own,
                steps.ofOthers(offset + parts.begin(rank), own),
                parts.size(rank) / parts.type.itemSize(),
                parts.type,
                op);
    }

    private void collectOthersParts(Parts parts, long target, long offset) {
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank) {
                long begin = parts.begin(peer);
                copies.copy(target + begin, steps.of(peer) + offset + begin, parts.size(peer));
            }
        }
    }

    private Parts parts(HostTensor tensor) {
        return new Parts(tensor.count(), tensor.type());
    }

    /** How the elements of a chunk are divided among the ranks; parts begin on cache lines. */
    private final class Parts {

        private final long count;
        private final ScalarType type;

        Parts(long count, ScalarType type) {
            this.count = count;
            this.type = type;
        }

        /** Where a rank's part begins, in bytes; that after the last is where the chunk ends. */
        long begin(int part) {
            long itemSize = type.itemSize();
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
