// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Float8 operands of all ranks, and their products in float64 by plain loops.
 *
 * @param rows the rows of a rank's shard or part
 * @param inner the columns of each rank's A
 * @param columns the columns of B
 * @param byRow whether each row of A and each column of B has a scale
 * @param sumError the error of sums allowed, relative to the sum of absolute products
 * @param productError the error of each product allowed, relative to the largest product of its sum
 */
record ScaledCase(
        int rows, int inner, int columns, boolean byRow, double sumError, double productError) {

    private static final double ROUNDING = 1.0 / 256; // of bfloat16

    /** A matrix of exact e4m3 values, and its scales. */
    private record Scaled(float[] values, float[] scales, int rows, int columns) {

        static Scaled of(int rows, int columns, int scales, long seed) {
            Random random = new Random(seed);
            float[] values = new float[rows * columns];
            for (int i = 0; i < values.length; i++) {
                // 4 significant bits and exponents from -6 to 2: exact in e4m3.
                int significand = (8 + random.nextInt(8)) * (random.nextBoolean() ? 1 : -1);
                values[i] = Math.scalb((float) significand, random.nextInt(9) - 9);
            }
            float[] all = new float[scales];
            for (int i = 0; i < scales; i++) {
                all[i] = 0.01f + random.nextFloat();
            }
            return new Scaled(values, all, rows, columns);
        }

        double scale(int index) {
            return scales[scales.length == 1 ? 0 : index];
        }

        NDArray array(NDManager manager) {
            try (NDArray wide = manager.create(values, new Shape(rows, columns))) {
                return Torch.cast(wide, ScalarType.FLOAT8_E4M3FN);
            }
        }

        NDArray scales(NDManager manager, Shape shape) {
            return manager.create(scales, shape);
        }
    }

    private Scaled left(int rank, int ofRows) {
        return Scaled.of(ofRows, inner, byRow ? ofRows : 1, byRow ? 100 + rank : 100);
    }

    /** The transpose of B: each row is a column of B. */
    private Scaled right(int seed) {
        return Scaled.of(columns, inner, byRow ? columns : 1, 200 + seed);
    }

    private NDArray scalesOfA(Scaled a, NDManager manager) {
        return a.scales(manager, byRow ? new Shape(a.rows, 1) : new Shape(1));
    }

    private NDArray scalesOfB(Scaled b, NDManager manager) {
        return b.scales(manager, byRow ? new Shape(1, columns) : new Shape());
    }

    void checkGather(ProcessGroup group) {
        int rank = group.rank();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            Scaled mine = left(rank, rows);
            List<Scaled> rights = List.of(right(0), right(1));
            List<NDArray> bs = new ArrayList<>();
            List<NDArray> scales = new ArrayList<>();
            for (Scaled right : rights) {
                bs.add(right.array(manager).transpose());
                scales.add(scalesOfB(right, manager));
            }
            for (int call = 0; call < 2; call++) {
                GatheredMatmul result =
                        FusedOps.allGatherScaledMatmul(
                                mine.array(manager),
                                bs,
                                scalesOfA(mine, manager),
                                scales,
                                call == 0 ? 0 : -2,
                                group,
                                call == 0);
                for (int b = 0; b < bs.size(); b++) {
                    double[][] sums = new double[3][group.worldSize() * rows * columns];
                    for (int peer = 0; peer < group.worldSize(); peer++) {
                        add(sums, peer * rows, left(peer, rows), rights.get(b));
                    }
                    check(result.outputs().get(b), sums, 0, group.worldSize() * rows, 1, false);
                }
                if (call == 0) {
                    NDArray wide = Torch.cast(result.gathered().orElseThrow(), ScalarType.FLOAT32);
                    float[] gathered = TestArrays.awaited(wide).toFloatArray();
                    int size = rows * inner;
                    for (int peer = 0; peer < group.worldSize(); peer++) {
                        assertArrayEquals(
                                left(peer, rows).values,
                                Arrays.copyOfRange(gathered, peer * size, (peer + 1) * size));
                    }
                }
            }
        }
    }

    void checkScatter(ProcessGroup group, ReduceOp op) {
        int world = group.worldSize();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            Scaled a = left(group.rank(), rows * world);
            Scaled b = right(group.rank());
            NDArray result =
                    FusedOps.scaledMatmulReduceScatter(
                            a.array(manager),
                            b.array(manager).transpose(),
                            scalesOfA(a, manager),
                            scalesOfB(b, manager),
                            op,
                            0,
                            group);
            double[][] sums = new double[3][rows * world * columns];
            for (int peer = 0; peer < world; peer++) {
                add(sums, 0, left(peer, rows * world), right(peer));
            }
            check(
                    result,
                    sums,
                    group.rank() * rows,
                    rows,
                    op == ReduceOp.AVG ? world : 1,
                    world > 1);
        }
    }

    /**
     * Adds a product, the sum of its absolute values, and their number times the largest, to the
     * rows from {@code first} on.
     */
    private void add(double[][] sums, int first, Scaled a, Scaled b) {
        for (int row = 0; row < a.rows; row++) {
            for (int column = 0; column < columns; column++) {
                double sum = 0;
                double absolute = 0;
                double largest = 0;
                for (int k = 0; k < inner; k++) {
                    double term = (double) a.values[row * inner + k] * b.values[column * inner + k];
                    sum += term;
                    absolute += Math.abs(term);
                    largest = Math.max(largest, Math.abs(term));
                }
                double scale = a.scale(row) * b.scale(column);
                sums[0][(first + row) * columns + column] += scale * sum;
                sums[1][(first + row) * columns + column] += scale * absolute;
                sums[2][(first + row) * columns + column] += scale * inner * largest;
            }
        }
    }

    private void check(
            NDArray result,
            double[][] sums,
            int first,
            int count,
            double divisor,
            boolean partial) {
        assertEquals(new Shape(count, columns), result.getShape());
        assertEquals(ScalarType.BFLOAT16, Torch.scalarType(result));
        float[] actual;
        try (NDArray wide = Torch.cast(result, ScalarType.FLOAT32)) {
            actual = TestArrays.awaited(wide).toFloatArray();
        }
        for (int i = 0; i < actual.length; i++) {
            double expected = sums[0][first * columns + i] / divisor;
            double absolute = sums[1][first * columns + i] / divisor;
            double error = Math.abs(actual[i] - expected);
            // Each rank's product is rounded before it is sent; all together are <= absolute.
            double sent = partial ? absolute : 0;
            double aligned = productError * sums[2][first * columns + i] / divisor;
            double allowed = ROUNDING * (Math.abs(expected) + sent) + sumError * absolute + aligned;
            int index = i;
            assertTrue(
                    error <= allowed,
                    () ->
                            "%s: row %d, column %d of %d x %d: %s, not %s within %s"
                                    .formatted(
                                            this,
                                            index / columns,
                                            index % columns,
                                            count,
                                            columns,
                                            actual[index],
                                            expected,
                                            allowed));
        }
    }
}
