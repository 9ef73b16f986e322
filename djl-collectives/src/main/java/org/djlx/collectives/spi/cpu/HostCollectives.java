// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import java.util.ArrayList;
import java.util.List;
import java.util.function.ToLongBiFunction;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.host.CallWords;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;

/**
 * The collectives of one rank on memory of its host. Each method compares the calls of all ranks
 * ({@link Operation#signature}; if they differ, all ranks throw {@link #mismatch}), runs the
 * operation, and blocks until it has ended. One operation runs at a time. Waits for other ranks
 * call {@link PeerStates#checkWait}, which throws at the operation's timeout. Lists have one
 * tensor, or the tensors of a coalesced operation.
 */
public interface HostCollectives {

    /** Memory from one rank or for one rank. */
    record Extent(long address, long size) {

        /** Returns the number of bytes from an offset on, at most the limit. */
        public long within(long offset, long limit) {
            return Math.max(0, Math.min(limit, size - offset));
        }
    }

    /** Waits for all ranks. */
    void barrier(Operation operation);

    /** Copies the root's tensor to all ranks. */
    void broadcast(Operation operation, HostTensor tensor, int root);

    /** Reduces tensors of one element type on all ranks, in place. */
    void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op);

    /** Reduces a tensor on the root, in place. Leaves the tensors of other ranks as they are. */
    void reduce(Operation operation, HostTensor tensor, int root, ReduceOp op);

    /**
     * Gathers tensors of all ranks on all ranks; {@code outputs.get(i)[r]} is the address for rank
     * r's input i.
     */
    void allGather(Operation operation, List<long[]> outputs, List<HostTensor> inputs);

    /** Gathers tensors of all ranks on the root, at an address for each; null on other ranks. */
    void gather(Operation operation, long[] outputs, HostTensor input, int root);

    /**
     * Sends a tensor from the root, which has the address for each rank, to each rank; null on
     * other ranks.
     */
    void scatter(Operation operation, HostTensor output, long[] inputs, int root);

    /**
     * Reduces what all ranks have for this rank, to outputs of one element type; {@code
     * inputs.get(i)[r]} is the address of the contribution to rank r's output i.
     */
    void reduceScatter(
            Operation operation, List<HostTensor> outputs, List<long[]> inputs, ReduceOp op);

    /**
     * Exchanges memory between all pairs of ranks, to outputs by source rank from inputs by
     * destination rank, after comparing the sizes ({@link #requireSizes}).
     */
    void allToAll(Operation operation, Extent[] outputs, Extent[] inputs);

    /** Begins an operation without data. Need not wait for the other ranks. */
    void begin(Operation operation);

    /**
     * {@return whether the operation that has failed last may still access the memory of its
     * tensors, so that it must not be released} The next call returns false.
     */
    default boolean takeOrphaned() {
        return false;
    }

    /**
     * Returns the exception for calls that differ, given the {@link Operation#signature} of each
     * rank's call in rank order. If all ranks throw it before data has moved, the group stays
     * usable.
     */
    static CollectiveMismatchException mismatch(Operation operation, List<long[]> signatures) {
        List<long[]> calls = new ArrayList<>();
        for (long[] signature : signatures) {
            long[] words = new long[CallWords.COUNT];
            CallWords.put(words, signature, false);
            calls.add(words);
        }
        return GroupErrors.disagreement(operation, operation.group(), calls);
    }

    /**
     * Checks that each rank expects as many bytes of an all-to-all from another rank as that one
     * sends; throws a CollectiveMismatchException that names all pairs that differ.
     */
    static void requireSizes(
            Operation operation,
            int worldSize,
            ToLongBiFunction<Integer, Integer> sent,
            ToLongBiFunction<Integer, Integer> expected) {
        GroupErrors.requireSizes(operation, worldSize, sent, expected);
    }
}
