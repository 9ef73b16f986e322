// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.RankShared;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One call of {@link FusedOps#allReduceRmsNorm} on random arrays, compared with Java: the residual
 * bit by bit, the norm in float64.
 *
 * @param type the element type
 * @param shape the shape of the partial
 * @param strided whether no array is contiguous
 * @param epsilon what is added to the mean of squares
 * @param seed of the random elements
 */
record NormCase(ScalarType type, Shape shape, boolean strided, float epsilon, long seed) {

    static final List<ScalarType> TYPES =
            List.of(ScalarType.FLOAT32, ScalarType.FLOAT16, ScalarType.BFLOAT16);

    private static final int RESIDUAL = 100;
    private static final int WEIGHT = 101;

    /** Rows of one element and of many, ends of packs, no rows, one dimension and several. */
    static List<NormCase> grid() {
        List<NormCase> cases = new ArrayList<>();
        for (ScalarType type : TYPES) {
            cases.add(new NormCase(type, new Shape(4, 256), false, 1e-5f, 1));
            cases.add(new NormCase(type, new Shape(1), false, 1e-6f, 2));
            cases.add(new NormCase(type, new Shape(7), false, 0, 3));
            cases.add(new NormCase(type, new Shape(3, 1), false, 1e-5f, 4));
            cases.add(new NormCase(type, new Shape(0, 8), false, 1e-5f, 5));
            cases.add(new NormCase(type, new Shape(2, 0, 8), true, 1e-5f, 6));
            cases.add(new NormCase(type, new Shape(2, 3, 33), false, 10, 7));
            cases.add(new NormCase(type, new Shape(2, 3, 33), true, 1e-5f, 8));
            cases.add(new NormCase(type, new Shape(5, 4097), true, 1e-5f, 9));
        }
        return cases;
    }

    private NDArray array(NDManager manager, Shape of, long salt) {
        long mixed = seed * 1_000_003 + salt;
        return strided
                ? TestArrays.randomStrided(manager, type, of, mixed)
                : TestArrays.random(manager, type, of, mixed);
    }

    private Shape row() {
        return new Shape(shape.getLastDimension());
    }

    /** Calls the operator on this rank a number of times, and checks each result. */
    void check(ProcessGroup group, int times) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray partial = array(manager, shape, group.rank());
            NDArray residual = array(manager, shape, RESIDUAL);
            NDArray weight = array(manager, row(), WEIGHT);
            double[] given = TestArrays.values(partial);
            double[] before = TestArrays.values(residual);
            double[] expected =
                    RankShared.get(
                            List.of(this, group.worldSize()),
                            () -> expectedResidual(manager, group.worldSize()));
            double[] first = null;
            for (int time = 0; time < times; time++) {
                boolean into = time > 0 && time == times - 1 && Torch.isContiguous(partial);
                NormedResidual result;
                if (into) {
                    // Into the array of the partial, as layers in a graph do.
                    result = new NormedResidual(partial, Torch.empty(manager, shape, type));
                    FusedOps.allReduceRmsNorm(result, partial, residual, weight, epsilon, group);
                } else {
                    result = FusedOps.allReduceRmsNorm(partial, residual, weight, epsilon, group);
                    assertArrayEquals(given, TestArrays.values(partial), "the partial is changed");
                }
                double[] sum = values(result.residual());
                assertArrayEquals(expected, sum, () -> this + ": the residual");
                double[] norm = values(result.norm());
                checkNorm(sum, TestArrays.values(weight), norm);
                first = first == null ? norm : first;
                assertArrayEquals(first, norm, () -> this + ": from run to run");
                assertSameOnAllRanks(group, manager, result.norm());
                result.residual().close();
                result.norm().close();
            }
            assertArrayEquals(before, TestArrays.values(residual), "the residual is changed");
        }
    }

    private double[] values(NDArray array) {
        assertEquals(shape, array.getShape());
        assertEquals(type, Torch.scalarType(array));
        return TestArrays.values(array);
    }

    /** Returns the expected residual, in IEEE float arithmetic; libtorch rounds to the type. */
    private double[] expectedResidual(NDManager manager, int ranks) {
        float[] sum = floats(array(manager, shape, 0));
        for (int rank = 1; rank < ranks; rank++) {
            add(sum, floats(array(manager, shape, rank)));
        }
        double[] rounded = rounded(manager, sum);
        float[] total = floats(array(manager, shape, RESIDUAL));
        for (int i = 0; i < total.length; i++) {
            total[i] += (float) rounded[i];
        }
        return rounded(manager, total);
    }

    private static float[] floats(NDArray array) {
        return TestArrays.awaited(Torch.cast(array, ScalarType.FLOAT32)).toFloatArray();
    }

    private static void add(float[] sum, float[] next) {
        for (int i = 0; i < sum.length; i++) {
            sum[i] += next[i];
        }
    }

    private double[] rounded(NDManager manager, float[] values) {
        return TestArrays.values(Torch.cast(manager.create(values), type));
    }

    /** Checks a norm. The tolerance is one rounding to the type, and a few in float32. */
    private void checkNorm(double[] residual, double[] weight, double[] norm) {
        int hidden = weight.length;
        for (int begin = 0; begin < residual.length; begin += hidden) {
            double squares = 0;
            for (int i = 0; i < hidden; i++) {
                squares += residual[begin + i] * residual[begin + i];
            }
            double root = Math.sqrt(squares / hidden + epsilon);
            for (int i = 0; i < hidden; i++) {
                double want = residual[begin + i] / root * weight[i];
                // Squares are added in trees; each thread adds its own elements in sequence first.
                double tolerance =
                        (roundOff() + (8 + Math.sqrt(hidden)) * 0x1p-24) * Math.abs(want) + 0x1p-25;
                int element = begin + i;
                assertEquals(want, norm[element], tolerance, () -> this + " [" + element + "]");
            }
        }
    }

    private double roundOff() {
        return switch (type) {
            case FLOAT16 -> 0x1p-11;
            case BFLOAT16 -> 0x1p-8;
            default -> 0x1p-24;
        };
    }

    private void assertSameOnAllRanks(ProcessGroup group, NDManager manager, NDArray norm) {
        if (group.device().isGpu() && P2pRanks.isShared()) {
            return; // There is no NCCL to gather them.
        }
        List<NDArray> all =
                Stream.generate(() -> Torch.empty(manager, shape, type))
                        .limit(group.worldSize())
                        .toList();
        group.allGather(all, norm).await();
        double[] own = TestArrays.values(norm);
        for (NDArray other : all) {
            assertArrayEquals(own, TestArrays.values(other), () -> this + ": from rank to rank");
        }
    }
}
