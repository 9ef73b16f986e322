// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.List;
import org.djlx.collectives.ReduceOp;
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

    private final Reducer reducer;

    ShmCollectives(Steps steps, Reducer reducer, Copies copies, int rank, int worldSize) {
        super(steps, copies, rank, worldSize);
        this.reducer = reducer;
    }

    private void reduceScatter(Operation operation, HostTensor output, long[] inputs, ReduceOp op) {
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
            // Only this rank reads its slots, so the reducer may overwrite them.
            reducer.reduce(
                    output.address() + done * itemSize,
                    steps.ofOthers(rank * slot, inputs[rank] + done * itemSize),
                    count,
                    type,
                    op);
            done += count;
        } while (done < output.count());
    }

    @Override
    public void reduceScatter(
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

    private void allReduce(Operation operation, HostTensor tensor, ReduceOp op) {
        if (tensor.byteSize() <= ONE_SHOT_BYTES) {
            operation.setAlgorithm("one-shot");
            oneShot(operation, tensor, op, true);
        } else {
            operation.setAlgorithm("two-shot");
            allReduceParts(operation, tensor, op);
        }
    }

    /** Gives the same bits as separate all-reduces. */
    @Override
    public void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op) {
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

    /** All-reduces tensors together, in one step, or in two if a tensor is two-shot. */
    private void allReduceTogether(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        steps.begin(operation);
        boolean inParts = false;
        long offset = 0;
        for (HostTensor tensor : tensors) {
            if (tensor.byteSize() <= ONE_SHOT_BYTES) {
                copies.copy(steps.mine() + offset, tensor.address(), tensor.byteSize());
            } else {
                inParts = true;
                stagePeerParts(parts(tensor), tensor.address(), offset);
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
                gatherPeerParts(parts(tensor), tensor.address(), offset);
            }
            offset += Steps.aligned(tensor.byteSize());
        }
    }

    @Override
    public void reduce(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        if (tensor.byteSize() <= ONE_SHOT_BYTES) {
            oneShot(operation, tensor, op, rank == root);
        } else {
            reduceParts(operation, tensor, root, op);
        }
    }

    /** All ranks stage their tensors; each rank that needs the result reduces everything. */
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

    /** Two-shot: every rank reduces its part of each chunk, then all ranks gather the parts. */
    private void allReduceParts(Operation operation, HostTensor tensor, ReduceOp op) {
        steps.begin(operation);
        ScalarType type = tensor.type();
        long chunk = steps.chunkSize() / type.itemSize();
        long done = 0;
        do {
            Parts parts = new Parts(Math.min(chunk, tensor.count() - done), type);
            long target = tensor.address() + done * type.itemSize();
            stagePeerParts(parts, target, 0);
            steps.synchronize();
            reduceOwnPart(parts, target, 0, op);
            steps.synchronize();
            gatherPeerParts(parts, target, 0);
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
            stagePeerParts(parts, target, 0);
            steps.synchronize();

            // Result positions as in allReduce; but only the root's tensor may change.
            long own = (rank == root ? target : steps.mine()) + parts.begin(rank);
            copies.copyInPlace(own, target + parts.begin(rank), parts.size(rank));
            reduce(parts, own, 0, op);
            steps.synchronize();
            if (rank == root) {
                gatherPeerParts(parts, target, 0);
            }
            done += parts.count;
        } while (done < tensor.count());
    }

    // A chunk starts at an offset in staging memory; parts have the same positions within both.

    /** Stages the parts that other ranks reduce. */
    private void stagePeerParts(Parts parts, long source, long offset) {
        long before = parts.begin(rank);
        long after = parts.begin(rank + 1);
        long mine = steps.mine() + offset;
        copies.copy(mine, source, before);
        copies.copy(mine + after, source + after, parts.begin(worldSize) - after);
    }

    /** Reduces this rank's part in place, and stages the result. */
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

    /** Copies the parts that other ranks have reduced from staging memory. */
    private void gatherPeerParts(Parts parts, long target, long offset) {
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

    /** The division of a chunk's elements among the ranks; parts start on cache lines. */
    private final class Parts {

        private final long count;
        private final ScalarType type;

        Parts(long count, ScalarType type) {
            this.count = count;
            this.type = type;
        }

        /**
         * Returns the offset of a rank's part in bytes; for the world size, the end of the chunk.
         */
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
