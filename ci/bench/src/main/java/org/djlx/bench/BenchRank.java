// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A rank of a benchmark, which owns its arrays in {@code manager}; {@code baseline} is null for
 * none, as on GPUs that ranks share.
 */
record BenchRank(
        ProcessGroup ours, Baseline baseline, NDManager manager, Meeting meeting, Lane lane) {

    int worldSize() {
        return ours.worldSize();
    }

    /**
     * Returns a pseudo-random bfloat16 input of a rank, turn and number, with mean 0 and variance
     * 1. Every rank can compute the input of every other rank. A formula computes the numbers,
     * because not every version of DJL can seed a GPU's generator.
     */
    NDArray input(int of, int turn, int number, long... sizes) {
        Shape shape = new Shape(sizes);
        try (NDManager temporary = manager.newSubManager()) {
            NDArray places = temporary.ones(new Shape(shape.size()), DataType.FLOAT64).cumSum(0);
            double phase = ((of * 1000 + turn) * 10 + number) * 78.233;
            // The fractional part of a large multiple of a sine.
            NDArray large = places.muli(12.9898).addi(phase).sin().muli(43758.5453);
            NDArray uniform = large.sub(large.floor()).subi(0.5).muli(Math.sqrt(12));
            NDArray result = Torch.cast(uniform.reshape(shape), ScalarType.BFLOAT16);
            result.attach(manager);
            return result;
        }
    }

    NDArray empty(long... sizes) {
        return Torch.empty(manager, new Shape(sizes), ScalarType.BFLOAT16);
    }
}
