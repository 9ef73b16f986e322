// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import java.util.Locale;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;

/** The collectives of {@code bench}, with nccl-tests' names. */
enum BenchOp {
    ALL_REDUCE("sum", -1),
    ALL_GATHER("none", -1),
    REDUCE_SCATTER("sum", -1),
    BROADCAST("none", 0);

    private final String redop;
    private final int root;

    BenchOp(String redop, int root) {
        this.redop = redop;
        this.root = root;
    }

    String redop() {
        return redop;
    }

    int root() {
        return root;
    }

    /** Returns whether the input is also the output. */
    boolean inPlace() {
        return this == ALL_REDUCE || this == BROADCAST;
    }

    /** Returns the number of rank parts in the input. */
    int inputParts(int worldSize) {
        return this == REDUCE_SCATTER ? worldSize : 1;
    }

    /** Returns the number of rank parts in the larger tensor. */
    int parts(int worldSize) {
        return Math.max(inputParts(worldSize), outputParts(worldSize));
    }

    /** Returns the number of rank parts in the output. */
    int outputParts(int worldSize) {
        return this == ALL_GATHER ? worldSize : 1;
    }

    Work issue(ProcessGroup group, NDArray output, NDArray input) {
        return switch (this) {
            case ALL_REDUCE -> group.allReduce(output, ReduceOp.SUM);
            case ALL_GATHER -> group.allGatherIntoTensor(output, input);
            case REDUCE_SCATTER -> group.reduceScatterTensor(output, input, ReduceOp.SUM);
            case BROADCAST -> group.broadcast(output, root);
        };
    }

    /** Returns a rank's input at an index. Values are small, so sums are exact in every type. */
    static int input(int rank, long index) {
        return (int) ((index + rank) % 5);
    }

    /**
     * Returns a rank's expected output at an index; each rank has a part of {@code part} elements.
     */
    int expected(int rank, int worldSize, long part, long index) {
        return switch (this) {
            case ALL_REDUCE -> sum(worldSize, index);
            case ALL_GATHER -> input((int) (index / part), index % part);
            case REDUCE_SCATTER -> sum(worldSize, rank * part + index);
            case BROADCAST -> input(root, index);
        };
    }

    private static int sum(int worldSize, long index) {
        return IntStream.range(0, worldSize).map(rank -> input(rank, index)).sum();
    }

    /** Returns nccl-tests' factor from algbw to busbw, the speed of the links. */
    double busFactor(int worldSize) {
        double others = (worldSize - 1.0) / worldSize;
        return switch (this) {
            case ALL_REDUCE -> 2 * others;
            case BROADCAST -> 1;
            default -> others;
        };
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
