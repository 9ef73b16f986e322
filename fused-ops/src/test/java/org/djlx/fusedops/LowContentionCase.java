// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.RankShared;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Inputs of a low-contention collective, the same on every rank, and expected results.
 *
 * @param type the element type
 * @param shape the shape of a rank's part
 * @param place where the larger array lies
 * @param seed makes the values
 */
record LowContentionCase(ScalarType type, Shape shape, Place place, long seed) {

    enum Place {
        ANYWHERE,
        STRIDED,
        IN_PLACE, // the part is a slice of the whole
        HEAP,
        HEAP_IN_PLACE
    }

    private NDArray part(NDManager manager, int rank, int times) {
        Shape all = new Shape(times).addAll(shape);
        return TestArrays.random(manager, type, all, seed * 100 + rank);
    }

    /** Returns the shards of all ranks, in rank order. */
    private double[] gathered(NDManager manager, int worldSize) {
        return RankShared.get(
                List.of(this, "gathered", worldSize),
                () -> {
                    int size = (int) shape.size();
                    double[] all = new double[worldSize * size];
                    for (int rank = 0; rank < worldSize; rank++) {
                        double[] shard = values(manager, rank, 1);
                        System.arraycopy(shard, 0, all, rank * size, size);
                    }
                    return all;
                });
    }

    /** Returns the sums over the inputs of all ranks, and the sums of magnitudes. */
    private double[][] sums(NDManager manager, int worldSize) {
        return RankShared.get(
                List.of(this, "sums", worldSize),
                () -> {
                    int size = worldSize * (int) shape.size();
                    double[][] sums = new double[2][size];
                    for (int source = 0; source < worldSize; source++) {
                        double[] input = values(manager, source, worldSize);
                        for (int i = 0; i < size; i++) {
                            sums[0][i] += input[i];
                            sums[1][i] += Math.abs(input[i]);
                        }
                    }
                    return sums;
                });
    }

    private double[] values(NDManager manager, int rank, int times) {
        try (NDArray part = part(manager, rank, times)) {
            return TestArrays.values(part);
        }
    }

    /** Issues an all-gather, and returns the check of its result. */
    Runnable allGather(ProcessGroup group, NDManager manager) {
        int worldSize = group.worldSize();
        Shape all = new Shape(worldSize).addAll(shape);
        NDArray output = empty(group, manager, all);
        NDArray values = part(manager, group.rank(), 1).reshape(shape);
        NDArray input = values;
        if (place == Place.STRIDED) {
            input = strided(manager, shape);
            Torch.copy(input, values);
        } else if (inPlace()) {
            input = output.get(group.rank());
            Torch.copy(input, values);
        }
        Work work = LowContention.allGather(group, output, input);
        return () -> {
            work.await();
            double[] actual = TestArrays.values(output);
            int size = (int) shape.size();
            assertEquals(worldSize * size, actual.length);
            double[] expected = gathered(manager, worldSize);
            for (int rank = 0; rank < worldSize; rank++) {
                double[] got = Arrays.copyOfRange(actual, rank * size, (rank + 1) * size);
                double[] want = Arrays.copyOfRange(expected, rank * size, (rank + 1) * size);
                assertArrayEquals(want, got, 0, this + ", from rank " + rank);
            }
            output.close();
        };
    }

    /** Issues a reduce-scatter, and returns the check of its result. */
    Runnable reduceScatter(ProcessGroup group, NDManager manager, ReduceOp op) {
        int worldSize = group.worldSize();
        int rank = group.rank();
        NDArray input = empty(group, manager, new Shape(worldSize).addAll(shape));
        Torch.copy(input, part(manager, rank, worldSize));
        NDArray output = inPlace() ? input.get(rank) : empty(group, manager, shape);
        Work work = LowContention.reduceScatter(group, output, input, op);
        return () -> {
            work.await();
            double[] actual = TestArrays.values(output);
            assertEquals(shape.size(), actual.length);
            int begin = rank * actual.length;
            int end = begin + actual.length;
            double[][] sums = sums(manager, worldSize);
            double[] want = Arrays.copyOfRange(sums[0], begin, end);
            double[] size = Arrays.copyOfRange(sums[1], begin, end);
            double divisor = op == ReduceOp.AVG ? worldSize : 1;
            for (int i = 0; i < want.length; i++) {
                // Each addition and the division round once, in float32 or float64. 16-bit types
                // then round once more.
                double added = worldSize * accumulated() * size[i];
                double tolerance = (added + stored() * (Math.abs(want[i]) + added)) / divisor;
                tolerance += type == ScalarType.FLOAT16 ? 0x1p-25 : 0; // as far as subnormal
                int element = i;
                assertEquals(
                        want[i] / divisor, actual[i], tolerance, () -> this + " [" + element + "]");
            }
            List.of(input, output).forEach(NDArray::close);
        };
    }

    private boolean inPlace() {
        return place == Place.IN_PLACE || place == Place.HEAP_IN_PLACE;
    }

    private NDArray empty(ProcessGroup group, NDManager manager, Shape of) {
        return switch (place) {
            case ANYWHERE, IN_PLACE -> Torch.empty(manager, of, type);
            case STRIDED -> strided(manager, of);
            case HEAP, HEAP_IN_PLACE ->
                    group.p2pBuffers().orElseThrow().allocator().allocate(manager, of, type);
        };
    }

    /** Returns an array with every second element of a larger one. */
    private NDArray strided(NDManager manager, Shape of) {
        return Torch.empty(manager, of.add(2), type).get("..., 0");
    }

    /** Returns the relative rounding of an operation. */
    private double accumulated() {
        return type == ScalarType.FLOAT64 ? 0x1p-53 : 0x1p-24;
    }

    /** Returns the additional relative rounding of the result. */
    private double stored() {
        return switch (type) {
            case FLOAT16 -> 0x1p-11;
            case BFLOAT16 -> 0x1p-8;
            default -> 0;
        };
    }

    /** Returns one case for each placement of the array. */
    static List<LowContentionCase> large(ScalarType type, Shape shape) {
        return Arrays.stream(Place.values())
                .map(place -> new LowContentionCase(type, shape, place, place.ordinal() + 1))
                .toList();
    }

    static List<LowContentionCase> grid(List<ScalarType> types) {
        List<LowContentionCase> grid = new ArrayList<>();
        for (ScalarType type : types) {
            for (Place place : Place.values()) {
                long seed = grid.size() + 1;
                grid.add(new LowContentionCase(type, new Shape(), place, seed));
                grid.add(new LowContentionCase(type, new Shape(0, 3), place, seed));
                grid.add(new LowContentionCase(type, new Shape(7), place, seed));
                grid.add(new LowContentionCase(type, new Shape(5, 1, 33), place, seed));
                grid.add(new LowContentionCase(type, new Shape(64, 64), place, seed));
            }
        }
        return grid;
    }
}
