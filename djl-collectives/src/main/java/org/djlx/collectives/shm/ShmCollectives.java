/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.shm;

import org.djlx.collectives.Operation;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.SharedMemory;

/**
 * The collectives of one rank over staging memory.
 *
 * <p>All are made of steps. In a step every rank may write one of its two staging halves, then
 * reaches a synchronisation and waits for all, then may read everybody's half. Steps alternate
 * between the halves: by the time a rank has waited for the next step, all have finished reading
 * this one, so its half is free for the step after that, and one synchronisation a step is enough.
 *
 * <p>One instance serves one rank; operations run one at a time.
 */
final class ShmCollectives {

    // Below, every rank reduces the whole tensor: one step instead of two.
    private static final long ONE_SHOT_BYTES = 16 << 10;
    private static final long ALIGNMENT = 64;

    private final ShmSegment segment;
    private final RankSync sync;
    private final Reducer reducer;
    private final int rank;
    private final int worldSize;

    ShmCollectives(ShmSegment segment, RankSync sync, Reducer reducer, int rank, int worldSize) {
        this.segment = segment;
        this.sync = sync;
        this.reducer = reducer;
        this.rank = rank;
        this.worldSize = worldSize;
    }

    /** The steps of one operation; the first also checks that all ranks agree on it. */
    private final class Steps {

        private final Operation operation;
        private boolean begun;

        Steps(Operation operation) {
            this.operation = operation;
        }

        /** Where this rank writes for the step that comes. */
        long mine() {
            return segment.staging(rank, (sync.epoch() + 1) & 1);
        }

        void synchronize() {
            if (begun) {
                sync.synchronize(operation);
            } else {
                begun = true;
                sync.begin(operation);
                sync.awaitAgreement(operation);
            }
        }

        /** What a rank wrote for the step that was synchronised last. */
        long of(int peer) {
            return segment.staging(peer, sync.epoch() & 1);
        }

        /** What all ranks wrote for the step that was synchronised last, at an offset. */
        long[] ofAll(long offset) {
            long[] addresses = new long[worldSize];
            for (int peer = 0; peer < worldSize; peer++) {
                addresses[peer] = of(peer) + offset;
            }
            return addresses;
        }
    }

    void barrier(Operation operation) {
        new Steps(operation).synchronize();
    }

    void broadcast(Operation operation, HostTensor tensor, int root) {
        Steps steps = new Steps(operation);
        long byteSize = tensor.byteSize();
        long offset = 0;
        do {
            long size = Math.min(segment.chunkSize(), byteSize - offset);
            if (rank == root) {
                SharedMemory.copy(steps.mine(), tensor.address() + offset, size);
            }
            steps.synchronize();
            if (rank != root) {
                SharedMemory.copy(tensor.address() + offset, steps.of(root), size);
            }
            offset += size;
        } while (offset < byteSize);
    }

    /**
     * All-gather.
     *
     * @param outputs the address for each rank's tensor
     */
    void allGather(Operation operation, long[] outputs, HostTensor input) {
        Steps steps = new Steps(operation);
        long byteSize = input.byteSize();
        long offset = 0;
        do {
            long size = Math.min(segment.chunkSize(), byteSize - offset);
            SharedMemory.copy(steps.mine(), input.address() + offset, size);
            steps.synchronize();
            for (int peer = 0; peer < worldSize; peer++) {
                SharedMemory.copy(outputs[peer] + offset, steps.of(peer), size);
            }
            offset += size;
        } while (offset < byteSize);
    }

    /**
     * Reduce-scatter.
     *
     * @param inputs the address of the tensor for each rank
     */
    void reduceScatter(Operation operation, HostTensor output, long[] inputs, ReduceOp op) {
        Steps steps = new Steps(operation);
        ScalarType type = output.type();
        long itemSize = type.itemSize();
        long chunk = segment.chunkSize() / worldSize / ALIGNMENT * ALIGNMENT / itemSize;
        long done = 0;
        do {
            long count = Math.min(chunk, output.count() - done);
            for (int peer = 0; peer < worldSize; peer++) {
                SharedMemory.copy(
                        steps.mine() + peer * chunk * itemSize,
                        inputs[peer] + done * itemSize,
                        count * itemSize);
            }
            steps.synchronize();
            reducer.reduce(
                    output.address() + done * itemSize,
                    steps.ofAll(rank * chunk * itemSize),
                    count,
                    type,
                    op);
            done += count;
        } while (done < output.count());
    }

    void allReduce(Operation operation, HostTensor tensor, ReduceOp op) {
        if (tensor.byteSize() <= ONE_SHOT_BYTES) {
            operation.setAlgorithm("one-shot");
            oneShotAllReduce(operation, tensor, op);
        } else {
            operation.setAlgorithm("two-shot");
            twoShotAllReduce(operation, tensor, op);
        }
    }

    /** Every rank reduces everything. */
    private void oneShotAllReduce(Operation operation, HostTensor tensor, ReduceOp op) {
        Steps steps = new Steps(operation);
        SharedMemory.copy(steps.mine(), tensor.address(), tensor.byteSize());
        steps.synchronize();
        reducer.reduce(tensor.address(), steps.ofAll(0), tensor.count(), tensor.type(), op);
    }

    /** Every rank reduces its part of each chunk, then all gather the parts. */
    private void twoShotAllReduce(Operation operation, HostTensor tensor, ReduceOp op) {
        Steps steps = new Steps(operation);
        ScalarType type = tensor.type();
        long itemSize = type.itemSize();
        long chunk = segment.chunkSize() / itemSize;
        long done = 0;
        do {
            long count = Math.min(chunk, tensor.count() - done);
            long target = tensor.address() + done * itemSize;
            SharedMemory.copy(steps.mine(), target, count * itemSize);
            steps.synchronize();

            long begin = partBegin(rank, count, itemSize);
            long length = partBegin(rank + 1, count, itemSize) - begin;
            reducer.reduce(
                    steps.mine() + begin * itemSize,
                    steps.ofAll(begin * itemSize),
                    length,
                    type,
                    op);
            steps.synchronize();
            for (int peer = 0; peer < worldSize; peer++) {
                long from = partBegin(peer, count, itemSize) * itemSize;
                long to = partBegin(peer + 1, count, itemSize) * itemSize;
                SharedMemory.copy(target + from, steps.of(peer) + from, to - from);
            }
            done += count;
        } while (done < tensor.count());
    }

    /** Where a rank's part of some elements begins; parts begin on cache lines. */
    private long partBegin(int part, long count, long itemSize) {
        if (part == worldSize) {
            return count;
        }
        long line = ALIGNMENT / itemSize;
        return count * part / worldSize / line * line;
    }
}
