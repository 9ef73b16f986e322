// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cpu;

import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Operation;

/**
 * The collectives of one rank on tensors in host memory. Each method compares the calls of all
 * ranks, runs the operation, and blocks until it has ended. One operation runs at a time. Lists
 * have one tensor, or the tensors of a coalesced operation.
 */
public interface HostCollectives {

    /**
     * Memory from one rank or for one rank.
     *
     * @param address its address
     * @param size its size in bytes
     */
    record Extent(long address, long size) {

        /** Returns the number of bytes from an offset on, at most a limit. */
        public long within(long offset, long limit) {
            return Math.max(0, Math.min(limit, size - offset));
        }
    }

    /** Waits for all ranks. */
    void barrier(Operation operation);

    /** Copies the root's tensor to all ranks. */
    void broadcast(Operation operation, HostTensor tensor, int root);

    /** Reduces tensors of one element type in place. */
    void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op);

    /** Reduces a tensor on the root, in place; leaves those of other ranks. */
    void reduce(Operation operation, HostTensor tensor, int root, ReduceOp op);

    /** All-gather. {@code outputs.get(i)[r]} is the address for rank r's input i. */
    void allGather(Operation operation, List<long[]> outputs, List<HostTensor> inputs);

    /** Gathers at the root. {@code outputs} is null elsewhere. */
    void gather(Operation operation, long[] outputs, HostTensor input, int root);

    /** Scatters from the root. {@code inputs} is null elsewhere. */
    void scatter(Operation operation, HostTensor output, long[] inputs, int root);

    /**
     * Reduces what all ranks have for this rank. {@code inputs.get(i)[r]} is for rank r's output i.
     */
    void reduceScatter(
            Operation operation, List<HostTensor> outputs, List<long[]> inputs, ReduceOp op);

    /** Exchanges memory between all pairs of ranks, after comparing the sizes. */
    void allToAll(Operation operation, Extent[] outputs, Extent[] inputs);

    /** Begins an operation without data, and does not wait. */
    void begin(Operation operation);

    /**
     * Returns, once, whether the operation that has failed last may still access the memory of its
     * tensors, so that it must not be released.
     */
    default boolean takeOrphaned() {
        return false;
    }
}
