/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * A rank that measures.
 *
 * @param ours its handle of the group that is measured
 * @param baseline what it is compared with; null if there is none, as where ranks share a GPU
 * @param manager of its arrays
 * @param meeting where it meets the others
 * @param lane the lane of its work
 */
record GpuBenchRank(
        ProcessGroup ours, Baseline baseline, NDManager manager, Meeting meeting, Lane lane) {

    int worldSize() {
        return ours.worldSize();
    }

    /**
     * Makes an input in bfloat16 of numbers without order, with mean 0 and variance 1. Every rank
     * can make that of any other: it is computed, as the generators of GPUs cannot be seeded
     * through every version of DJL.
     *
     * @param of whose input
     * @param turn for which turn
     * @param number which of its inputs
     */
    NDArray input(int of, int turn, int number, long... sizes) {
        Shape shape = new Shape(sizes);
        try (NDManager temporary = manager.newSubManager()) {
            NDArray places = temporary.ones(new Shape(shape.size()), DataType.FLOAT64).cumSum(0);
            double phase = ((of * 1000 + turn) * 10 + number) * 78.233;
            // What is behind the point of a large multiple of a sine.
            NDArray large = places.muli(12.9898).addi(phase).sin().muli(43758.5453);
            NDArray uniform = large.sub(large.floor()).subi(0.5).muli(Math.sqrt(12));
            NDArray result = Torch.cast(uniform.reshape(shape), ScalarType.BFLOAT16);
            result.attach(manager);
            return result;
        }
    }

    /** Makes an array in bfloat16 of which nothing is known but its sizes. */
    NDArray empty(long... sizes) {
        return Torch.empty(manager, new Shape(sizes), ScalarType.BFLOAT16);
    }
}
