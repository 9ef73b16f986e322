// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.BiFunction;
import java.util.function.IntFunction;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class PowerSgdTest {

    /** Returns each step's reduced gradients, of rank 0, after checking that all ranks' are. */
    private static double[][][] run(
            int ranks,
            PowerSgd hook,
            int steps,
            Shape[] shapes,
            DataType type,
            ReduceOp op,
            BiFunction<Integer, Integer, double[][]> gradients) {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            List<double[][][]> all =
                    ProcessGroups.run(
                            groups,
                            group ->
                                    run(
                                            group,
                                            hook.ofRank(),
                                            shapes,
                                            type,
                                            op,
                                            steps,
                                            step -> gradients.apply(group.rank(), step)));
            for (double[][][] other : all) {
                assertEquals(Arrays.deepToString(all.get(0)), Arrays.deepToString(other));
            }
            return all.get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static double[][][] run(
            ProcessGroup group,
            GradientHook hook,
            Shape[] shapes,
            DataType type,
            ReduceOp op,
            int steps,
            IntFunction<double[][]> gradients) {
        double[][][] results = new double[steps][shapes.length][];
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            List<NDArray> parameters =
                    Arrays.stream(shapes).map(shape -> manager.zeros(shape, type)).toList();
            for (int step = 0; step < steps; step++) {
                List<NDArray> own = new ArrayList<>();
                for (int i = 0; i < shapes.length; i++) {
                    own.add(
                            manager.create(gradients.apply(step)[i], shapes[i])
                                    .toType(type, false));
                }
                GradientBucket bucket = new GradientBucket(0, parameters, own, group, op, manager);
                Work work = hook.reduce(bucket);
                work.await();
                hook.finish(bucket, work);
                for (int i = 0; i < shapes.length; i++) {
                    results[step][i] = own.get(i).toType(DataType.FLOAT64, false).toDoubleArray();
                }
            }
        }
        return results;
    }

    private static double[][] random(Shape[] shapes, long seed) {
        Random random = new Random(seed);
        return Arrays.stream(shapes)
                .map(shape -> random.doubles(shape.size(), -1, 1).toArray())
                .toArray(double[][]::new);
    }

    private static double[][] matrix(double[] values, int rows) {
        int columns = values.length / rows;
        double[][] matrix = new double[rows][];
        for (int i = 0; i < rows; i++) {
            matrix[i] = Arrays.copyOfRange(values, i * columns, (i + 1) * columns);
        }
        return matrix;
    }

    private static double[][] transposed(double[][] a) {
        double[][] t = new double[a[0].length][a.length];
        for (int i = 0; i < a.length; i++) {
            for (int k = 0; k < a[0].length; k++) {
                t[k][i] = a[i][k];
            }
        }
        return t;
    }

    private static double[][] product(double[][] a, double[][] b) {
        double[][] result = new double[a.length][b[0].length];
        for (int i = 0; i < a.length; i++) {
            for (int j = 0; j < b[0].length; j++) {
                for (int k = 0; k < b.length; k++) {
                    result[i][j] += a[i][k] * b[k][j];
                }
            }
        }
        return result;
    }

    /** Solves a · x = b by Gauss-Jordan elimination with pivots. */
    private static double[][] solve(double[][] a, double[][] b) {
        int n = a.length;
        double[][] left = Arrays.stream(a).map(double[]::clone).toArray(double[][]::new);
        double[][] right = Arrays.stream(b).map(double[]::clone).toArray(double[][]::new);
        for (int k = 0; k < n; k++) {
            int pivot = k;
            for (int i = k + 1; i < n; i++) {
                pivot = Math.abs(left[i][k]) > Math.abs(left[pivot][k]) ? i : pivot;
            }
            double[] row = left[k];
            left[k] = left[pivot];
            left[pivot] = row;
            row = right[k];
            right[k] = right[pivot];
            right[pivot] = row;
            for (int i = 0; i < n; i++) {
                double factor = i == k ? 0 : left[i][k] / left[k][k];
                for (int j = 0; j < n && factor != 0; j++) {
                    left[i][j] -= factor * left[k][j];
                }
                for (int j = 0; j < right[k].length && factor != 0; j++) {
                    right[i][j] -= factor * right[k][j];
                }
            }
        }
        for (int k = 0; k < n; k++) {
            for (int j = 0; j < right[k].length; j++) {
                right[k][j] /= left[k][k];
            }
        }
        return right;
    }

    private static void add(double[][] to, double[][] from, double factor) {
        for (int i = 0; i < to.length; i++) {
            for (int k = 0; k < to[0].length; k++) {
                to[i][k] += factor * from[i][k];
            }
        }
    }

    /**
     * The algorithm's mean gradient in float64, without orthogonalisation: M is projected on the
     * columns of P = M·Q by the normal equations, P·(PᵀP)⁻¹·PᵀM, which any base of the columns
     * gives.
     */
    private static final class Reference {

        private final double[][][] errors; // by rank
        private double[][] q;

        Reference(int ranks, int rows, int columns, int rank, Random random) {
            errors = new double[ranks][rows][columns];
            q = new double[columns][rank];
            for (double[] row : q) {
                for (int k = 0; k < rank; k++) {
                    row[k] = random.nextGaussian();
                }
            }
        }

        double[][] step(List<double[][]> gradients) {
            double[][] mean = new double[errors[0].length][errors[0][0].length];
            for (int rank = 0; rank < errors.length; rank++) {
                add(errors[rank], gradients.get(rank), 1);
                add(mean, errors[rank], 1.0 / errors.length);
            }
            double[][] p = product(mean, q);
            q = product(transposed(mean), p);
            double[][] weights = solve(product(transposed(p), p), transposed(q));
            double[][] result = product(p, weights);
            for (double[][] error : errors) {
                add(error, result, -1);
            }
            return result;
        }
    }

    @ParameterizedTest
    @CsvSource({
        "1, 1, FLOAT64, false, 1e-9",
        "2, 1, FLOAT64, false, 1e-9",
        "3, 2, FLOAT64, true, 1e-9",
        "2, 3, FLOAT64, false, 1e-9",
        "2, 2, FLOAT32, false, 1e-3",
        "4, 1, FLOAT32, true, 1e-3"
    })
    void equalsPaperInFloat64(int ranks, int rank, DataType type, boolean sum, double tolerance) {
        ReduceOp op = sum ? ReduceOp.SUM : ReduceOp.AVG;
        Shape[] shapes = {new Shape(12, 9), new Shape(9), new Shape(8, 3, 4), new Shape(2, 2)};
        int[] matrices = {0, 2};
        int first = 2; // steps with whole gradients
        int steps = first + 6;
        BiFunction<Integer, Integer, double[][]> gradients =
                (own, step) -> random(shapes, 100L * step + own);
        double[][][] actual =
                run(ranks, new PowerSgd(rank, first), steps, shapes, type, op, gradients);
        double factor = sum ? ranks : 1;
        for (int i = 0; i < shapes.length; i++) {
            int index = i;
            int rows = (int) shapes[i].get(0);
            int matrix = Arrays.binarySearch(matrices, i);
            Reference reference =
                    matrix < 0
                            ? null
                            : new Reference(
                                    ranks,
                                    rows,
                                    (int) shapes[i].size() / rows,
                                    rank,
                                    new Random(matrix));
            for (int step = 0; step < steps; step++) {
                List<double[][]> all = new ArrayList<>();
                double[][] expected = new double[rows][(int) shapes[i].size() / rows];
                for (int own = 0; own < ranks; own++) {
                    all.add(matrix(gradients.apply(own, step)[index], rows));
                    add(expected, all.get(own), 1.0 / ranks);
                }
                if (matrix >= 0 && step >= first) {
                    expected = reference.step(all);
                }
                double[][] result = matrix(actual[step][i], rows);
                for (int row = 0; row < rows; row++) {
                    for (int k = 0; k < result[row].length; k++) {
                        result[row][k] /= factor;
                    }
                    assertArrayEquals(
                            expected[row], result[row], tolerance, "step " + step + ", " + i);
                }
            }
        }
    }

    /** Zeros and matrices of a lower rank leave columns of zeros, which must not stay so. */
    @Test
    void errorFeedbackSendsEverythingInTheEnd() {
        Shape[] shapes = {new Shape(6, 20)};
        double[][] full = random(shapes, 7);
        int zeros = 3;
        int steps = 200;
        double[][][] actual =
                run(
                        2,
                        new PowerSgd(3, 0),
                        zeros + steps,
                        shapes,
                        DataType.FLOAT32,
                        ReduceOp.AVG,
                        (rank, step) -> step < zeros ? new double[1][120] : full);
        double[] sum = new double[120];
        for (int step = 0; step < zeros + steps; step++) {
            for (int i = 0; i < sum.length; i++) {
                sum[i] += actual[step][0][i] / steps;
            }
        }
        assertArrayEquals(new double[120], actual[zeros - 1][0]);
        assertArrayEquals(full[0], sum, 0.03);
    }

    /** Rounding errors of equal numbers are equal: all columns of P depend on the first one. */
    @ParameterizedTest
    @ValueSource(doubles = {0.5, 0.1, 0.3, 0.7, 1 / 3.0})
    void gradientOfLowerRankIsSentWhole(double value) {
        Shape[] shapes = {new Shape(10, 12)};
        double[] equal = new double[120];
        Arrays.fill(equal, value); // a matrix of rank 1
        double[][][] actual =
                run(
                        2,
                        new PowerSgd(4, 0),
                        3,
                        shapes,
                        DataType.FLOAT32,
                        ReduceOp.SUM,
                        (rank, step) -> new double[][] {equal});
        double[] twice = Arrays.stream(equal).map(of -> 2 * of).toArray();
        for (double[][] step : actual) {
            assertArrayEquals(twice, step[0], 1e-5);
        }
    }
}
