// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.List;
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
        steps.begin(operation);
        long byteSize = tensor.byteSize();
        long offset = 0;
        do {
            long size = Math.min(steps.chunkSize(), byteSize - offset);
            if (rank == root && worldSize > 1) {
                copies.copy(steps.mine(), tensor.address() + offset, size);
            }
            steps.synchronize();
            if (rank != root) {
                copies.copy(tensor.address() + offset, steps.of(root), size);
            }
            offset += size;
        } while (offset < byteSize);
    }

    @Override
    public void allGather(Operation operation, List<long[]> outputs, List<HostTensor> inputs) {
        int next = 0;
        while (next < inputs.size()) {
            int end = Steps.endOfStep(inputs, next, steps.chunkSize());
            if (end == next + 1) {
                gather(operation, outputs.get(next), inputs.get(next), true);
            } else {
                allGatherTogether(operation, outputs.subList(next, end), inputs.subList(next, end));
            }
            next = end;
        }
    }

    private void allGatherTogether(
            Operation operation, List<long[]> outputs, List<HostTensor> inputs) {
        steps.begin(operation);
        long offset = 0;
        for (HostTensor input : inputs) {
            copies.copy(steps.mine() + offset, input.address(), input.byteSize());
            offset += Steps.aligned(input.byteSize());
        }
        steps.synchronize();
        offset = 0;
        for (int i = 0; i < inputs.size(); i++) {
            long byteSize = inputs.get(i).byteSize();
            for (int peer = 0; peer < worldSize; peer++) {
                long output = outputs.get(i)[peer];
                if (peer == rank) {
                    copies.copyInPlace(output, inputs.get(i).address(), byteSize);
                } else {
                    copies.copy(output, steps.of(peer) + offset, byteSize);
                }
            }
            offset += Steps.aligned(byteSize);
        }
    }

    @Override
    public void gather(Operation operation, long[] outputs, HostTensor input, int root) {
        gather(operation, outputs, input, rank != root);
    }

    private void gather(Operation operation, long[] outputs, HostTensor input, boolean othersRead) {
        steps.begin(operation);
        long byteSize = input.byteSize();
        long offset = 0;
        do {
            long size = Math.min(steps.chunkSize(), byteSize - offset);
            if (othersRead && worldSize > 1) {
                copies.copy(steps.mine(), input.address() + offset, size);
            }
            steps.synchronize();
            for (int peer = 0; outputs != null && peer < worldSize; peer++) {
                if (peer == rank) {
                    copies.copyInPlace(outputs[peer] + offset, input.address() + offset, size);
                } else {
                    copies.copy(outputs[peer] + offset, steps.of(peer), size);
                }
            }
            offset += size;
        } while (offset < byteSize);
    }

    @Override
    public void scatter(Operation operation, HostTensor output, long[] inputs, int root) {
        steps.begin(operation);
        long slot = steps.slotSize(0);
        long byteSize = output.byteSize();
        long offset = 0;
        do {
            long size = Math.min(slot, byteSize - offset);
            for (int peer = 0; rank == root && peer < worldSize; peer++) {
                if (peer != root) {
                    copies.copy(steps.mine() + peer * slot, inputs[peer] + offset, size);
                }
            }
            steps.synchronize();
            if (rank == root) {
                copies.copyInPlace(output.address() + offset, inputs[root] + offset, size);
            } else {
                copies.copy(output.address() + offset, steps.of(root) + rank * slot, size);
            }
            offset += size;
        } while (offset < byteSize);
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
