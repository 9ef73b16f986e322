// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Each rank squares its array, calls a collective, and weighs the result with weights of its own;
 * the loss is the sum over the ranks. Gradients are compared with those of the same computed on one
 * thread by plain DJL, and with finite differences of it, in float64.
 */
class DifferentiableCollectivesTest {

    private static final double TOLERANCE = 1e-12;
    private static final double STEP = 1e-5;

    private interface Sharded {
        NDArray call(NDArray x, ProcessGroup group);
    }

    /** What each rank gets, from what all put in. */
    private interface Whole {
        List<NDArray> call(List<NDArray> xs);
    }

    private static NDArray random(NDManager manager, Shape shape, long seed) {
        return TestArrays.random(manager, ScalarType.FLOAT64, shape, seed);
    }

    private static NDArray sum(List<NDArray> arrays) {
        return arrays.stream().reduce(NDArray::add).orElseThrow();
    }

    /** DJL duplicates the only one, which autograd does not see. */
    private static NDArray concatenated(List<NDArray> xs, int axis) {
        return xs.size() == 1 ? xs.get(0) : NDArrays.concat(new NDList(xs), axis);
    }

    private static double[] gradient(NDArray array) {
        try (NDArray gradient = array.getGradient()) {
            return gradient.toDoubleArray();
        }
    }

    private static NDArray totalLoss(
            List<NDArray> xs, Whole whole, Function<Long, NDArray> weight) {
        List<NDArray> ys = whole.call(xs.stream().map(NDArray::square).toList());
        List<NDArray> losses = new ArrayList<>();
        for (int rank = 0; rank < xs.size(); rank++) {
            losses.add(ys.get(rank).mul(weight.apply(100L + rank)).sum());
        }
        return sum(losses);
    }

    private static void check(int worldSize, Shape in, Shape out, Sharded sharded, Whole whole) {
        double[][] expected = new double[worldSize][];
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            List<NDArray> xs = new ArrayList<>();
            for (int rank = 0; rank < worldSize; rank++) {
                xs.add(random(manager, in, rank));
                xs.get(rank).setRequiresGradient(true);
            }
            Function<Long, NDArray> weight = seed -> random(manager, out, seed);
            try (GradientCollector collector = Engine.getEngine("PyTorch").newGradientCollector()) {
                collector.backward(totalLoss(xs, whole, weight));
            }
            for (int rank = 0; rank < worldSize; rank++) {
                expected[rank] = gradient(xs.get(rank));
                NDArray x = xs.get(rank);
                x.setRequiresGradient(false);
                double[] values = x.toDoubleArray();
                for (int i = 0; i < values.length; i++) {
                    double[] losses = new double[2];
                    for (int side = 0; side < 2; side++) {
                        double[] moved = values.clone();
                        moved[i] += side == 0 ? STEP : -STEP;
                        List<NDArray> others = new ArrayList<>(xs);
                        others.set(rank, manager.create(moved, in));
                        losses[side] = totalLoss(others, whole, weight).getDouble();
                    }
                    assertEquals(expected[rank][i], (losses[0] - losses[1]) / (2 * STEP), 1e-7);
                }
            }
        }
        List<ProcessGroup> groups = ProcessGroups.local(worldSize);
        try {
            List<double[]> gradients =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                try (NDManager manager = NDManager.newBaseManager("PyTorch");
                                        GradientScope scope = GradientScope.open()) {
                                    NDArray x = random(manager, in, group.rank());
                                    x.setRequiresGradient(true);
                                    NDArray y = sharded.call(x.square(), group);
                                    assertEquals(out, y.getShape());
                                    NDArray weight = random(manager, out, 100L + group.rank());
                                    scope.backward(y.mul(weight).sum());
                                    return gradient(x);
                                }
                            });
            for (int rank = 0; rank < worldSize; rank++) {
                assertArrayEquals(expected[rank], gradients.get(rank), TOLERANCE, "rank " + rank);
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void allReduce(int worldSize) {
        Shape shape = new Shape(2, 3);
        check(
                worldSize,
                shape,
                shape,
                DifferentiableCollectives::allReduce,
                xs -> {
                    NDArray sum = sum(xs);
                    return xs.stream().map(x -> sum).toList();
                });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void allGather(int worldSize) {
        for (int dimension : new int[] {0, 1, -1}) {
            Shape in = new Shape(2, 3, 2);
            int axis = Math.floorMod(dimension, 3);
            long[] sizes = in.getShape().clone();
            sizes[axis] *= worldSize;
            check(
                    worldSize,
                    in,
                    new Shape(sizes),
                    (x, group) -> DifferentiableCollectives.allGather(x, dimension, group),
                    xs -> {
                        NDArray whole = concatenated(xs, axis);
                        return xs.stream().map(x -> whole).toList();
                    });
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void reduceScatter(int worldSize) {
        for (int dimension : new int[] {0, 1, -1}) {
            long[] sizes = {2, 3, 2};
            Shape out = new Shape(sizes.clone());
            int axis = Math.floorMod(dimension, 3);
            sizes[axis] *= worldSize;
            check(
                    worldSize,
                    new Shape(sizes),
                    out,
                    (x, group) -> DifferentiableCollectives.reduceScatter(x, dimension, group),
                    xs -> sum(xs).split(worldSize, axis));
        }
    }

    /** x is the same on all ranks, W1 split by columns, W2 by rows, and so is the result. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void aParallelRegion(int worldSize) {
        int hidden = 4;
        double[][] expected = new double[3][];
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientCollector collector = Engine.getEngine("PyTorch").newGradientCollector()) {
            NDArray x = random(manager, new Shape(5, 3), 1);
            NDArray w1 = random(manager, new Shape(3, hidden), 2);
            NDArray w2 = random(manager, new Shape(hidden, 3), 3);
            List<NDArray> leaves = List.of(x, w1, w2);
            leaves.forEach(leaf -> leaf.setRequiresGradient(true));
            NDArray z = x.square();
            NDArray y = z.add(z.matMul(w1).tanh().matMul(w2));
            collector.backward(y.square().sum());
            IntStream.range(0, 3).forEach(i -> expected[i] = gradient(leaves.get(i)));
        }
        for (boolean cut : new boolean[] {false, true}) {
            List<ProcessGroup> groups = ProcessGroups.local(worldSize);
            try {
                ProcessGroups.run(
                        groups,
                        group -> {
                            checkRegion(group, hidden, cut, expected);
                            return null;
                        });
            } finally {
                groups.forEach(ProcessGroup::destroy);
            }
        }
    }

    private static void checkRegion(
            ProcessGroup group, int hidden, boolean cut, double[][] expected) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            int w = group.worldSize();
            NDArray x = random(manager, new Shape(5, 3), 1);
            NDArray w1 = random(manager, new Shape(3, hidden), 2).split(w, 1).get(group.rank());
            NDArray w2 = random(manager, new Shape(hidden, 3), 3).split(w, 0).get(group.rank());
            List.of(x, w1, w2).forEach(leaf -> leaf.setRequiresGradient(true));
            NDArray z = cut ? DifferentiableCollectives.cut(x.square()) : x.square();
            NDArray h = DifferentiableCollectives.enterParallel(z, group).matMul(w1).tanh();
            // The residual connection is another way to what is behind z.
            NDArray y = z.add(DifferentiableCollectives.leaveParallel(h.matMul(w2), group));
            scope.backward(y.square().sum());
            assertArrayEquals(expected[0], gradient(x), TOLERANCE);
            assertArrayEquals(
                    part(manager, expected[1], new Shape(3, hidden), w, 1, group.rank()),
                    gradient(w1),
                    TOLERANCE);
            assertArrayEquals(
                    part(manager, expected[2], new Shape(hidden, 3), w, 0, group.rank()),
                    gradient(w2),
                    TOLERANCE);
        }
    }

    private static double[] part(
            NDManager manager, double[] values, Shape shape, int parts, int axis, int index) {
        return manager.create(values, shape).split(parts, axis).get(index).toDoubleArray();
    }
}
