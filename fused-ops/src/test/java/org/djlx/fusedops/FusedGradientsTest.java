// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Gradients through the fused operators, compared with those of DJL's operators on one thread in
 * float64. The loss there is the sum of the ranks' losses.
 */
class FusedGradientsTest {

    private static final double TOLERANCE = 1e-11;
    private static final double STEP = 1e-5;

    private static NDArray random(NDManager manager, Shape shape, long seed) {
        return TestArrays.random(manager, ScalarType.FLOAT64, shape, seed);
    }

    private static NDArray leaf(NDManager manager, Shape shape, long seed) {
        NDArray array = random(manager, shape, seed);
        array.setRequiresGradient(true);
        return array;
    }

    private static double[] gradient(NDArray array) {
        try (NDArray gradient = array.getGradient()) {
            return gradient.toDoubleArray();
        }
    }

    /** Concatenates arrays. DJL would duplicate a single one, which autograd does not record. */
    private static NDArray concatenated(List<NDArray> xs, int axis) {
        return xs.size() == 1 ? xs.get(0) : NDArrays.concat(new NDList(xs), axis);
    }

    /** Multiplies batches by one matrix, which DJL needs broadcast. */
    private static NDArray matMul(NDArray a, NDArray b) {
        Shape shape = a.getShape();
        int last = shape.dimension() - 1;
        NDArray product = a.reshape(shape.slice(0, last).size(), shape.get(last)).matMul(b);
        return product.reshape(shape.slice(0, last).add(b.getShape().get(1)));
    }

    /** The shape of A on each rank, and the gather or scatter dimension. */
    record Case(int worldSize, Shape shape, int dim, boolean nccl, boolean regather) {}

    static Stream<Case> gathers() {
        return cases(
                w ->
                        Stream.of(
                                new Case(w, new Shape(4, 6), 0, false, false),
                                new Case(w, new Shape(4, 6), 0, true, true),
                                new Case(w, new Shape(4, 6), -1, false, true),
                                new Case(w, new Shape(2, 3, 5), 1, false, false),
                                new Case(w, new Shape(2, 3, 5), 1, false, true)));
    }

    static Stream<Case> scatters() {
        return cases(
                w ->
                        Stream.of(
                                new Case(w, new Shape(4 * w, 6), 0, false, false),
                                new Case(w, new Shape(4 * w, 6), 0, true, false),
                                new Case(w, new Shape(4, 6), -1, false, false),
                                new Case(w, new Shape(2, 3 * w, 5), 1, false, false)));
    }

    private interface OfWorldSize {
        Stream<Case> cases(int worldSize);
    }

    private static Stream<Case> cases(OfWorldSize cases) {
        return Stream.of(1, 2, 4).flatMap(cases::cases);
    }

    private void run(Case c, Consumer<ProcessGroup> body) {
        if (c.nccl) {
            try (FusedOps.Scope forced = FusedOps.forceFallback()) {
                assertNotNull(forced);
                run(c.worldSize, body);
            }
        } else {
            run(c.worldSize, body);
        }
    }

    /** Runs code on ranks as threads. */
    void run(int worldSize, Consumer<ProcessGroup> body) {
        LocalRanks.run(worldSize, body);
    }

    /** Returns a manager on the device of the ranks. */
    NDManager newManager() {
        return NDManager.newBaseManager(Device.cpu(), "PyTorch");
    }

    @ParameterizedTest
    @MethodSource("gathers")
    void allGatherMatmul(Case c) {
        int axis = Math.floorMod(c.dim, c.shape.dimension());
        int last = c.shape.dimension() - 1;
        long inner = c.shape.get(last) * (axis == last ? c.worldSize : 1);
        Shape[] bShapes = {new Shape(inner, 3), new Shape(inner, 2)};
        double[][][] expected =
                expected(
                        c.worldSize,
                        (manager, rank) -> leaves(manager, c.shape, bShapes, rank),
                        leaves -> gatherLoss(leaves, axis));
        run(
                c,
                group -> {
                    try (NDManager manager = newManager();
                            GradientScope scope = GradientScope.open().optRegather(c.regather)) {
                        List<NDArray> own = leaves(manager, c.shape, bShapes, group.rank());
                        GatheredMatmul result =
                                FusedOps.allGatherMatmul(
                                        own.get(0).square(),
                                        List.of(own.get(1), own.get(2).square()),
                                        c.dim,
                                        group);
                        scope.backward(
                                loss(
                                        result.gathered().orElseThrow(),
                                        result.outputs().get(0),
                                        result.outputs().get(1),
                                        group.rank()));
                        assertGradients(expected[group.rank()], own);
                    }
                });
    }

    /** Returns the gradients of each rank's leaves, computed by one device. */
    private double[][][] expected(
            int worldSize,
            BiFunction<NDManager, Integer, List<NDArray>> leavesOfRank,
            Function<List<List<NDArray>>, NDArray> loss) {
        try (NDManager manager = newManager();
                GradientCollector collector = Engine.getEngine("PyTorch").newGradientCollector()) {
            List<List<NDArray>> leaves =
                    IntStream.range(0, worldSize)
                            .mapToObj(rank -> leavesOfRank.apply(manager, rank))
                            .toList();
            collector.backward(loss.apply(leaves));
            return leaves.stream()
                    .map(own -> own.stream().map(FusedGradientsTest::gradient))
                    .map(own -> own.toArray(double[][]::new))
                    .toArray(double[][][]::new);
        }
    }

    private static NDArray gatherLoss(List<List<NDArray>> leaves, int axis) {
        NDArray gathered =
                concatenated(leaves.stream().map(own -> own.get(0).square()).toList(), axis);
        return IntStream.range(0, leaves.size())
                .mapToObj(
                        rank ->
                                loss(
                                        gathered,
                                        matMul(gathered, leaves.get(rank).get(1)),
                                        matMul(gathered, leaves.get(rank).get(2).square()),
                                        rank))
                .reduce(NDArray::add)
                .orElseThrow();
    }

    private static List<NDArray> leaves(NDManager manager, Shape a, Shape[] bs, int rank) {
        return List.of(
                leaf(manager, a, rank),
                leaf(manager, bs[0], 100L + rank),
                leaf(manager, bs[1], 200L + rank));
    }

    /** Returns the loss of a rank: a weighted sum with weights of its own. */
    private static NDArray loss(NDArray gathered, NDArray first, NDArray second, int rank) {
        NDManager manager = first.getManager();
        return gathered.mul(random(manager, gathered.getShape(), 300L + rank))
                .sum()
                .add(first.mul(random(manager, first.getShape(), 400L + rank)).sum())
                .add(second.square().sum());
    }

    private static void assertGradients(double[][] expected, List<NDArray> leaves) {
        for (int i = 0; i < expected.length; i++) {
            assertArrayEquals(expected[i], gradient(leaves.get(i)), TOLERANCE, "leaf " + i);
        }
    }

    @ParameterizedTest
    @MethodSource("scatters")
    void matmulReduceScatter(Case c) {
        int axis = Math.floorMod(c.dim, c.shape.dimension());
        int last = c.shape.dimension() - 1;
        Shape b = new Shape(c.shape.get(last), axis == last ? 3L * c.worldSize : 3);
        for (ReduceOp op : List.of(ReduceOp.SUM, ReduceOp.AVG)) {
            double[][][] expected =
                    expected(
                            c.worldSize,
                            (manager, rank) -> scatterLeaves(manager, c.shape, b, rank),
                            leaves -> scatterLoss(leaves, op, axis));
            run(
                    c,
                    group -> {
                        try (NDManager manager = newManager();
                                GradientScope scope = GradientScope.open()) {
                            List<NDArray> own = scatterLeaves(manager, c.shape, b, group.rank());
                            NDArray y =
                                    FusedOps.matmulReduceScatter(
                                            own.get(0).square(), own.get(1), op, c.dim, group);
                            NDArray weights = random(manager, y.getShape(), 300L + group.rank());
                            scope.backward(y.square().mul(weights).sum());
                            assertGradients(expected[group.rank()], own);
                        }
                    });
        }
    }

    private static List<NDArray> scatterLeaves(NDManager manager, Shape a, Shape b, int rank) {
        return List.of(leaf(manager, a, rank), leaf(manager, b, 100L + rank));
    }

    private static NDArray scatterLoss(List<List<NDArray>> leaves, ReduceOp op, int axis) {
        int worldSize = leaves.size();
        NDArray sum =
                leaves.stream()
                        .map(own -> matMul(own.get(0).square(), own.get(1)))
                        .reduce(NDArray::add)
                        .orElseThrow();
        NDArray whole = op == ReduceOp.AVG ? sum.div(worldSize) : sum;
        List<NDArray> parts = worldSize == 1 ? List.of(whole) : whole.split(worldSize, axis);
        NDArray loss = null;
        for (int rank = 0; rank < worldSize; rank++) {
            NDArray part = parts.get(rank);
            NDArray weights = random(part.getManager(), part.getShape(), 300L + rank);
            NDArray own = part.square().mul(weights).sum();
            loss = loss == null ? own : loss.add(own);
        }
        return loss;
    }

    /** An MLP with a residual connection, compared with finite differences of the unsharded MLP. */
    @Test
    void anMlpAgainstFiniteDifferences() {
        int worldSize = 2;
        Shape xShape = new Shape(4, 3);
        Shape w1Shape = new Shape(3, 4);
        Shape w2Shape = new Shape(4, 3);
        double[][] differences = new double[3][];
        try (NDManager manager = newManager()) {
            List<NDArray> all =
                    List.of(
                            random(manager, xShape, 1),
                            random(manager, w1Shape, 2),
                            random(manager, w2Shape, 3));
            for (int i = 0; i < 3; i++) {
                double[] values = all.get(i).toDoubleArray();
                differences[i] = new double[values.length];
                for (int j = 0; j < values.length; j++) {
                    double[] losses = new double[2];
                    for (int side = 0; side < 2; side++) {
                        double[] moved = values.clone();
                        moved[j] += side == 0 ? STEP : -STEP;
                        List<NDArray> arrays = new ArrayList<>(all);
                        arrays.set(i, manager.create(moved, all.get(i).getShape()));
                        NDArray z = arrays.get(0).square();
                        NDArray h = z.matMul(arrays.get(1)).tanh();
                        losses[side] = z.add(h.matMul(arrays.get(2))).square().sum().getDouble();
                    }
                    differences[i][j] = (losses[0] - losses[1]) / (2 * STEP);
                }
            }
        }
        run(
                worldSize,
                group -> {
                    int r = group.rank();
                    try (NDManager manager = newManager();
                            GradientScope scope = GradientScope.open()) {
                        int[] axes = {0, 1, 0};
                        Shape[] shapes = {xShape, w1Shape, w2Shape};
                        List<NDArray> own = new ArrayList<>();
                        for (int i = 0; i < 3; i++) {
                            NDArray whole = random(manager, shapes[i], i + 1);
                            own.add(whole.split(worldSize, axes[i]).get(r).duplicate());
                            own.get(i).setRequiresGradient(true);
                        }
                        NDArray z = own.get(0).square();
                        NDArray h =
                                FusedOps.allGatherMatmul(z, List.of(own.get(1)), 0, group, false)
                                        .outputs()
                                        .get(0)
                                        .tanh();
                        NDArray y =
                                FusedOps.matmulReduceScatter(h, own.get(2), ReduceOp.SUM, 0, group);
                        scope.backward(z.add(y).square().sum());
                        for (int i = 0; i < 3; i++) {
                            double[] part =
                                    manager.create(differences[i], shapes[i])
                                            .split(worldSize, axes[i])
                                            .get(r)
                                            .toDoubleArray();
                            assertArrayEquals(part, gradient(own.get(i)), 1e-6, "leaf " + i);
                        }
                    }
                });
    }

    /** If views of two results are added, libtorch shares one memory between their gradients. */
    @Test
    void averagesMayShareTheirGradient() {
        run(
                2,
                group -> {
                    try (NDManager manager = newManager();
                            GradientScope scope = GradientScope.open()) {
                        NDArray a = random(manager, new Shape(4, 4), group.rank());
                        NDArray weights = random(manager, new Shape(2, 4), 8);
                        List<double[]> gradients = new ArrayList<>();
                        for (boolean viewed : new boolean[] {false, true}) {
                            NDArray b = leaf(manager, new Shape(4, 4), 7);
                            NDArray sum = weights.zerosLike();
                            for (int i = 0; i < 2; i++) {
                                NDArray y =
                                        FusedOps.matmulReduceScatter(a, b, ReduceOp.AVG, 0, group);
                                sum = sum.add(viewed ? y.reshape(2, 4) : y);
                            }
                            scope.backward(sum.mul(weights).sum());
                            gradients.add(gradient(b));
                        }
                        assertArrayEquals(gradients.get(0), gradients.get(1), TOLERANCE);
                    }
                });
    }

    /** Only inputs that require a gradient get one, and only they cause communication. */
    @Test
    void inputsWithoutRequiresGradientGetNoGradient() {
        run(
                2,
                group -> {
                    try (NDManager manager = newManager();
                            GradientScope scope = GradientScope.open()) {
                        NDArray a = random(manager, new Shape(4, 4), group.rank());
                        NDArray b = leaf(manager, new Shape(4, 4), 7);
                        GatheredMatmul up = FusedOps.allGatherMatmul(a, List.of(b), 0, group);
                        assertFalse(Torch.requiresGradient(up.gathered().orElseThrow()));
                        assertTrue(Torch.requiresGradient(up.outputs().get(0)));
                        long before = group.flightRecorder().dump().entries().size();
                        scope.backward(up.outputs().get(0).sum());
                        assertEquals(before, group.flightRecorder().dump().entries().size());
                        double[] rows =
                                up.gathered().orElseThrow().sum(new int[] {0}).toDoubleArray();
                        for (int i = 0; i < 16; i++) {
                            assertEquals(rows[i / 4], gradient(b)[i], TOLERANCE);
                        }
                    }
                });
    }

    /** Weights, and the activations that their gradients need. */
    @Test
    void changedOperandsAreRefused() {
        run(
                2,
                group -> {
                    assertScatterRefuses(group, true);
                    assertScatterRefuses(group, false);
                    assertGatherRefuses(group, true, false);
                    assertGatherRefuses(group, false, true);
                });
    }

    private void assertScatterRefuses(ProcessGroup group, boolean weight) {
        try (NDManager manager = newManager();
                GradientScope scope = GradientScope.open()) {
            NDArray a = random(manager, new Shape(4, 4), group.rank());
            NDArray b = leaf(manager, new Shape(4, 2), 7);
            NDArray y = FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group);
            NoGradient.run(() -> (weight ? b : a).addi(1));
            assertRefused(
                    scope,
                    y,
                    weight
                            ? "matmulReduceScatter: input 1 of shape (4, 2)"
                            : "matmulReduceScatter: kept array 1 of shape (4, 4)");
        }
    }

    private void assertGatherRefuses(ProcessGroup group, boolean weight, boolean regather) {
        try (NDManager manager = newManager();
                GradientScope scope = GradientScope.open().optRegather(regather)) {
            NDArray a = random(manager, new Shape(2, 4), group.rank());
            NDArray b = leaf(manager, new Shape(4, 2), 7);
            NDArray y = FusedOps.allGatherMatmul(a, List.of(b), 0, group, false).outputs().get(0);
            NoGradient.run(() -> (weight ? b : a).addi(1));
            assertRefused(
                    scope,
                    y,
                    weight
                            ? "allGatherMatmul: input 1 of shape (4, 2)"
                            : "allGatherMatmul: kept array 1 of shape (2, 4)");
        }
    }

    private static void assertRefused(GradientScope scope, NDArray y, String start) {
        String message =
                assertThrows(IllegalStateException.class, () -> scope.backward(y.sum()))
                        .getMessage();
        assertTrue(message.startsWith(start), message);
    }

    /** The backward pass reads the gathered copy: the shard may change in between. */
    @Test
    void theShardMayChangeWhileItsGatheredCopyIsKept() {
        run(
                2,
                group -> {
                    try (NDManager manager = newManager();
                            GradientScope scope = GradientScope.open()) {
                        NDArray a = random(manager, new Shape(2, 4), group.rank());
                        NDArray b = leaf(manager, new Shape(4, 1), 7);
                        GatheredMatmul up = FusedOps.allGatherMatmul(a, List.of(b), 0, group);
                        double[] sums =
                                up.gathered().orElseThrow().sum(new int[] {0}).toDoubleArray();
                        NoGradient.run(() -> a.muli(5));
                        scope.backward(up.outputs().get(0).sum());
                        assertArrayEquals(sums, gradient(b), TOLERANCE);
                    }
                });
    }

    /**
     * bfloat16 on 2 ranks, compared with float64, within one rounding. DJL has no name for
     * bfloat16.
     */
    @Test
    void sixteenBits() {
        run(
                2,
                group -> {
                    double[][] gradients = new double[2][];
                    for (ScalarType type : List.of(ScalarType.FLOAT64, ScalarType.BFLOAT16)) {
                        try (NDManager manager = newManager();
                                GradientScope scope = GradientScope.open()) {
                            NDArray x = ones(manager, type, group.rank());
                            NDArray w = ones(manager, type, 5);
                            NDArray h =
                                    FusedOps.allGatherMatmul(x, List.of(w), 0, group, false)
                                            .outputs()
                                            .get(0);
                            NDArray y = FusedOps.matmulReduceScatter(h, w, ReduceOp.SUM, 0, group);
                            scope.backward(y.sum());
                            try (NDArray gradient = w.getGradient()) {
                                assertEquals(type, Torch.scalarType(gradient));
                                gradients[type == ScalarType.FLOAT64 ? 0 : 1] =
                                        TestArrays.values(gradient);
                            }
                        }
                    }
                    // Small integers, which bfloat16 holds exactly up to 256.
                    assertArrayEquals(gradients[0], gradients[1], 1);
                });
    }

    /** A weight in bfloat16 whose elements are not adjacent. */
    @Test
    void aColumnOfAWiderMatrix() {
        run(
                2,
                group -> {
                    try (NDManager manager = newManager();
                            GradientScope scope = GradientScope.open()) {
                        List<NDArray> as = new ArrayList<>();
                        List<NDArray> wides = new ArrayList<>();
                        List<double[]> products = new ArrayList<>();
                        for (int rank = 0; rank < 2; rank++) {
                            ScalarType type = ScalarType.BFLOAT16;
                            as.add(integers(manager, type, new Shape(512, 32), rank));
                            wides.add(integers(manager, type, new Shape(32, 3), rank + 7));
                            NDArray left = Torch.cast(as.get(rank), ScalarType.FLOAT64);
                            NDArray right = Torch.cast(wides.get(rank), ScalarType.FLOAT64);
                            products.add(left.matMul(right).get(":, 1").toDoubleArray());
                        }
                        NDArray a = as.get(group.rank());
                        NDArray wide = wides.get(group.rank());
                        wide.setRequiresGradient(true);
                        NDArray y = FusedOps.matmulAllReduce(a, wide.get(":, 1:2"), group);
                        scope.backward(y.sum());
                        double[] got = TestArrays.values(y);
                        for (int i = 0; i < got.length; i++) {
                            double first = products.get(0)[i];
                            double second = products.get(1)[i];
                            // Both products are rounded, and their sum.
                            double most = 0x1.02p-7 * (Math.abs(first) + Math.abs(second));
                            assertEquals(first + second, got[i], most);
                        }
                        double[] sums =
                                Torch.cast(a, ScalarType.FLOAT64)
                                        .sum(new int[] {0})
                                        .toDoubleArray();
                        try (NDArray gradient = wide.getGradient()) {
                            double[] values = TestArrays.values(gradient);
                            for (int i = 0; i < sums.length; i++) {
                                assertEquals(0, values[3 * i]);
                                assertEquals(
                                        sums[i], values[3 * i + 1], 0x1p-8 * Math.abs(sums[i]));
                                assertEquals(0, values[3 * i + 2]);
                            }
                        }
                    }
                });
    }

    private static NDArray ones(NDManager manager, ScalarType type, long salt) {
        double[] values = new double[16];
        for (int i = 0; i < 16; i++) {
            values[i] = (i * 7 + salt) % 3 - 1;
        }
        NDArray array = TestArrays.of(manager, type, new Shape(4, 4), values);
        array.setRequiresGradient(true);
        return array;
    }

    /** Returns the relative error of float32 gradients from bfloat16 activations. */
    double convertedTolerance() {
        return 0x1p-9; // libtorch rounds each product.
    }

    /**
     * float32 master weights, two of which share one bfloat16 copy, used twice in each of two
     * passes. All numbers are integers: sums are exact in float32, but not in bfloat16. A weight of
     * one column has a gradient whose elements are not adjacent.
     */
    @ParameterizedTest
    @CsvSource({"32, 8", "512, 1"})
    void convertedWeights(int tokens, int narrow) {
        long[] columns = {narrow, 32 - narrow, 16};
        run(
                2,
                group -> {
                    try (NDManager manager = newManager()) {
                        List<NDArray> masters = new ArrayList<>();
                        NDArray[] expected = new NDArray[3];
                        for (int i = 0; i < 3; i++) {
                            Shape shape = new Shape(i < 2 ? 16 : 32, columns[i]);
                            masters.add(integers(manager, ScalarType.FLOAT32, shape, i));
                            masters.get(i).setRequiresGradient(true);
                            expected[i] = integers(manager, ScalarType.FLOAT64, shape, 0).mul(0);
                        }
                        for (int pass = 0; pass < 2; pass++) {
                            try (GradientScope scope = GradientScope.open()) {
                                NDArray up = converted(scope, masters.subList(0, 2));
                                NDArray down = converted(scope, masters.subList(2, 3));
                                List<NDArray> results = new ArrayList<>();
                                List<NDArray> gradients = new ArrayList<>();
                                for (int use = 0; use < 2; use++) {
                                    int salt = 4 * pass + 2 * use;
                                    Numbers in = new Numbers(manager, group, tokens, 16, salt);
                                    results.add(
                                            FusedOps.allGatherMatmul(
                                                            in.part, List.of(up), 0, group, false)
                                                    .outputs()
                                                    .get(0));
                                    Shape wide = new Shape(tokens, 32);
                                    NDArray ofUp =
                                            integers(manager, ScalarType.BFLOAT16, wide, salt + 50);
                                    gradients.add(ofUp);
                                    NDArray left =
                                            integers(manager, ScalarType.BFLOAT16, wide, salt + 70);
                                    results.add(
                                            FusedOps.matmulReduceScatter(
                                                    left, down, ReduceOp.SUM, 0, group));
                                    Numbers out = new Numbers(manager, group, tokens, 16, salt + 9);
                                    gradients.add(out.part);
                                    NDArray both = transposedProduct(in.whole, ofUp);
                                    expected[0] = expected[0].add(both.get(":, :" + narrow));
                                    expected[1] = expected[1].add(both.get(":, " + narrow + ":"));
                                    expected[2] =
                                            expected[2].add(transposedProduct(left, out.whole));
                                }
                                scope.backward(results, gradients);
                            }
                        }
                        for (int i = 0; i < 3; i++) {
                            double[] values = expected[i].toDoubleArray();
                            try (NDArray gradient = masters.get(i).getGradient()) {
                                double[] got = TestArrays.values(gradient);
                                for (int k = 0; k < values.length; k++) {
                                    // Sums of as many products of up to 15 * 15 are rounded.
                                    double most = convertedTolerance() * 4 * tokens * 15 * 15;
                                    assertTrue(
                                            Math.abs(values[k] - got[k]) <= most,
                                            i + ": " + values[k] + " became " + got[k]);
                                }
                            }
                        }
                    }
                });
    }

    /** A matrix of integers that all ranks know. Each rank has some of its rows. */
    private static final class Numbers {

        final NDArray whole;
        final NDArray part;

        Numbers(NDManager manager, ProcessGroup group, int rows, int columns, int salt) {
            whole = integers(manager, ScalarType.BFLOAT16, new Shape(rows, columns), salt);
            int own = rows / group.worldSize();
            int first = own * group.rank();
            part = Torch.cast(whole.get(first + ":" + (first + own) + ", :"), ScalarType.BFLOAT16);
        }
    }

    private static NDArray integers(NDManager manager, ScalarType type, Shape shape, int salt) {
        double[] values = new double[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (i * 37 + i / 16 * 5 + salt * 11) % 31 - 15;
        }
        return TestArrays.of(manager, type, shape, values);
    }

    private static NDArray converted(GradientScope scope, List<NDArray> masters) {
        NDArray result =
                NoGradient.get(() -> Torch.cast(concatenated(masters, 1), ScalarType.BFLOAT16));
        scope.recordConversion(masters, result);
        return result;
    }

    private static NDArray transposedProduct(NDArray a, NDArray b) {
        NDArray left = Torch.cast(a, ScalarType.FLOAT64);
        return left.transpose().matMul(Torch.cast(b, ScalarType.FLOAT64));
    }

    @Test
    void nothingIsLeftBehind() {
        run(
                2,
                group -> {
                    try (NDManager manager = newManager()) {
                        NDArray w = leaf(manager, new Shape(4, 4), 7);
                        int arrays = manager.getManagedArrays().size();
                        for (int i = 0; i < 5; i++) {
                            try (NDManager step = manager.newSubManager();
                                    GradientScope scope = GradientScope.open()) {
                                NDArray x = random(step, new Shape(2, 4), i);
                                NDArray h =
                                        FusedOps.allGatherMatmul(x, List.of(w), 0, group, false)
                                                .outputs()
                                                .get(0);
                                int own = step.getManagedArrays().size();
                                NDArray y =
                                        FusedOps.matmulReduceScatter(h, w, ReduceOp.SUM, 0, group);
                                assertEquals(own + 1, step.getManagedArrays().size());
                                scope.backward(y.sum());
                                assertEquals(own + 2, step.getManagedArrays().size());
                            }
                            assertEquals(arrays, manager.getManagedArrays().size());
                        }
                    }
                });
    }
}
