/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
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
 * @param marks in its work
 * @param recorder records its work
 */
record GpuBenchRank(
        ProcessGroup ours,
        Baseline baseline,
        NDManager manager,
        Meeting meeting,
        Marks marks,
        Recorder recorder) {

    private static final Object SEED = new Object(); // libtorch has one for the process

    int worldSize() {
        return ours.worldSize();
    }

    /** The same rank with another manager. */
    GpuBenchRank with(NDManager other) {
        return new GpuBenchRank(ours, baseline, other, meeting, marks, recorder);
    }

    /**
     * Makes an input in bfloat16, normally distributed. Every rank can make that of any other.
     *
     * @param of whose input
     * @param turn for which turn
     * @param number which of its inputs
     */
    NDArray input(int of, int turn, int number, long... sizes) {
        NDArray floats;
        synchronized (SEED) {
            Engine.getEngine("PyTorch").setRandomSeed(42 + (of * 1000 + turn) * 10 + number);
            floats = manager.randomNormal(new Shape(sizes));
        }
        try (floats) {
            return Torch.cast(floats, ScalarType.BFLOAT16);
        }
    }

    /** Makes an array in bfloat16 of which nothing is known but its sizes. */
    NDArray empty(long... sizes) {
        return Torch.empty(manager, new Shape(sizes), ScalarType.BFLOAT16);
    }
}
