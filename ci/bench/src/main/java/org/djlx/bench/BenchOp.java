/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import java.util.Locale;
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

    /** Returns whether the input is the output, too. */
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
        switch (this) {
            case ALL_REDUCE:
                return group.allReduce(output, ReduceOp.SUM);
            case ALL_GATHER:
                return group.allGatherIntoTensor(output, input);
            case REDUCE_SCATTER:
                return group.reduceScatterTensor(output, input, ReduceOp.SUM);
            case BROADCAST:
                return group.broadcast(output, root);
            default:
                throw new AssertionError(this);
        }
    }

    /** Returns a rank's input at an index. Values are small, so sums are exact in every type. */
    static int input(int rank, long index) {
        return (int) ((index + rank) % 5);
    }

    /**
     * Returns a rank's expected output at an index; each rank has a part of {@code part} elements.
     */
    int expected(int rank, int worldSize, long part, long index) {
        switch (this) {
            case ALL_REDUCE:
                return sum(worldSize, index);
            case ALL_GATHER:
                return input((int) (index / part), index % part);
            case REDUCE_SCATTER:
                return sum(worldSize, rank * part + index);
            case BROADCAST:
                return input(root, index);
            default:
                throw new AssertionError(this);
        }
    }

    private static int sum(int worldSize, long index) {
        int sum = 0;
        for (int rank = 0; rank < worldSize; rank++) {
            sum += input(rank, index);
        }
        return sum;
    }

    /** Returns nccl-tests' factor from algbw to busbw, the speed of the links. */
    double busFactor(int worldSize) {
        double others = (worldSize - 1.0) / worldSize;
        switch (this) {
            case ALL_REDUCE:
                return 2 * others;
            case BROADCAST:
                return 1;
            default:
                return others;
        }
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
