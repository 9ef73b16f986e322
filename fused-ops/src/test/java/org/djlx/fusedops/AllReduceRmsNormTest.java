// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.djlx.fusedops.FusedOpsErrorsTest.assertRejected;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.internal.cudap2p.Replays;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** All-reduce + RMSNorm on the CPU. */
@Timeout(300)
class AllReduceRmsNormTest {

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4})
    void allTypesAndShapes(int worldSize) {
        List<NormCase> grid = NormCase.grid();
        try (UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(worldSize, group -> grid.forEach(one -> one.check(group, 2)));
            long calls = 2L * worldSize * grid.size();
            assertEquals(calls, usage.fallbacks(FallbackReason.NO_P2P_BUFFERS));
            assertEquals(calls, usage.calls(Path.NCCL));
            assertEquals(calls, usage.calls());
        }
    }

    static List<NormCase> randomCases(long seed, int count, int mostRows, int mostHidden) {
        Random random = new Random(seed);
        return IntStream.range(0, count)
                .mapToObj(
                        i ->
                                new NormCase(
                                        NormCase.TYPES.get(random.nextInt(3)),
                                        new Shape(
                                                1 + random.nextInt(2),
                                                1 + random.nextInt(mostRows),
                                                1 + random.nextInt(mostHidden)),
                                        random.nextInt(4) == 0,
                                        Math.scalb(1f, -random.nextInt(30)),
                                        seed * 1000 + i))
                .toList();
    }

    @Test
    void randomShapes() {
        List<NormCase> cases = randomCases(3, 60, 12, 300);
        LocalRanks.run(3, group -> cases.forEach(one -> one.check(group, 1)));
    }

    /** Alternates calls of one shape that differ in strides, type, epsilon or path. */
    @Test
    void plansAreKeptApart() {
        Shape shape = new Shape(2, 5);
        List<NormCase> cases = new ArrayList<>();
        for (ScalarType type : NormCase.TYPES) {
            for (boolean strided : new boolean[] {false, true}) {
                cases.add(new NormCase(type, shape, strided, 1e-5f, 50));
                cases.add(new NormCase(type, shape, strided, 10, 51));
            }
        }
        LocalRanks.run(
                2,
                group -> {
                    for (int round = 0; round < 3; round++) {
                        cases.forEach(one -> one.check(group, 2));
                    }
                });
    }

    /** One of three rows overflows the type, or holds NaN. */
    @Test
    void infinitiesStayInTheirRows() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        double[] rows = {1, 1, 60_000, 1, Double.NaN, 1};
                        NDArray partial =
                                TestArrays.of(manager, ScalarType.FLOAT16, new Shape(3, 2), rows);
                        NDArray zeros =
                                Torch.cast(manager.zeros(new Shape(3, 2)), ScalarType.FLOAT16);
                        NDArray weight =
                                TestArrays.of(manager, ScalarType.FLOAT16, new Shape(2), 1, 2);
                        NormedResidual result =
                                FusedOps.allReduceRmsNorm(partial, zeros, weight, 0, group);
                        assertArrayEquals(
                                new double[] {2, 2, Double.POSITIVE_INFINITY, 2, Double.NaN, 2},
                                TestArrays.values(result.residual()));
                        assertArrayEquals(
                                new double[] {1, 2, Double.NaN, 0, Double.NaN, Double.NaN},
                                TestArrays.values(result.norm()));
                    }
                });
    }

    @Test
    void rejectsOutputsThatDoNotFitTheResults() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a = manager.ones(new Shape(2, 4));
                        NDArray weight = manager.ones(new Shape(4));
                        NDArray strided = manager.ones(new Shape(4, 2)).transpose();
                        NDArray other = Torch.cast(a, ScalarType.FLOAT16);
                        NDArray small = manager.ones(new Shape(1, 4));
                        into(group, a, weight, null, "outputs");
                        into(group, a, weight, new NormedResidual(null, a), "new residual is null");
                        into(group, a, weight, new NormedResidual(a, null), "norm is null");
                        into(group, a, weight, new NormedResidual(a, strided), "contiguous");
                        into(group, a, weight, new NormedResidual(other, a), "FLOAT16");
                        into(group, a, weight, new NormedResidual(a, small), "(1, 4)");
                        into(group, a, weight, new NormedResidual(a, a), "same");
                        group.barrier().await(); // Both ranks are still together.
                    }
                });
    }

    /** Only kernels of GPUs round norms to e4m3. */
    @Test
    void rejectsNormsInE4m3() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        Shape shape = new Shape(2, 8);
                        NDArray a = Torch.empty(manager, shape, ScalarType.BFLOAT16);
                        NDArray weight = Torch.empty(manager, new Shape(8), ScalarType.BFLOAT16);
                        NDArray bytes =
                                Torch.empty(manager, new Shape(20), ScalarType.FLOAT8_E4M3FN);
                        NDArray norm = Torch.narrow(bytes, 0, 0, 16).reshape(shape);
                        NDArray scales = manager.ones(new Shape(2, 1));
                        NormedResidual outputs = new NormedResidual(a, norm);
                        assertRejected(
                                () ->
                                        FusedOps.allReduceRmsNorm(
                                                outputs, scales, a, a, weight, 0, group),
                                "allReduceRmsNorm: rows of 8 BFLOAT16 on cpu",
                                "e4m3");
                    }
                });
    }

    private static void into(
            ProcessGroup group, NDArray a, NDArray weight, NormedResidual outputs, String text) {
        assertRejected(
                () -> FusedOps.allReduceRmsNorm(outputs, a, a, weight, 0, group),
                "allReduceRmsNorm",
                text);
    }

    @Test
    @SuppressWarnings("try") // the scope is not named in the body
    void thePlainPathCanBeForced() {
        NormCase one = NormCase.grid().get(0);
        try (UsageCounter usage = FusedOps.countUsage();
                FusedOps.Scope scope = FusedOps.forceFallback()) {
            LocalRanks.run(2, group -> one.check(group, 1));
            assertEquals(2, usage.fallbacks(FallbackReason.FORCED));
        }
    }

    @Test
    void wrongArgumentsAreRejectedBeforeAnythingIsSent() {
        FusedOpsErrorsTest.assertNothingSent(AllReduceRmsNormTest::reject);
    }

    private static void reject(ProcessGroup group, NDManager manager) {
        NDArray a = manager.ones(new Shape(2, 4));
        NDArray w = manager.ones(new Shape(4));
        NDArray closed = manager.ones(new Shape(2, 4));
        closed.close();
        assertRejected(() -> norm(a, a, w, 0, null), "allReduceRmsNorm: the group is null");
        assertRejected(() -> norm(null, a, w, 0, group), "partial is null");
        assertRejected(() -> norm(a, null, w, 0, group), "residual is null");
        assertRejected(() -> norm(a, a, null, 0, group), "weight is null");
        assertRejected(() -> norm(a, closed, w, 0, group), "residual", "closed");
        assertRejected(() -> norm(a, a.transpose(), w, 0, group), "residual", "(4, 2)", "(2, 4)");
        assertRejected(() -> norm(a, w, w, 0, group), "residual", "(4)", "(2, 4)");
        assertRejected(() -> norm(a, a, a, 0, group), "weight", "must have (4)");
        assertRejected(() -> norm(a.get(0).get(0), a, w, 0, group), "partial", "()", "1 or more");
        NDArray empty = manager.ones(new Shape(2, 0));
        assertRejected(() -> norm(empty, empty, w, 0, group), "(2, 0)", "1 or more");
        NDArray wide = a.toType(DataType.FLOAT64, true);
        assertRejected(() -> norm(wide, wide, w, 0, group), "partial is FLOAT64", "BFLOAT16");
        NDArray half = Torch.cast(a, ScalarType.FLOAT16);
        assertRejected(() -> norm(a, half, w, 0, group), "residual is FLOAT16", "FLOAT32");
        assertRejected(() -> norm(half, half, w, 0, group), "weight is FLOAT32", "FLOAT16");
        for (float epsilon : new float[] {-1e-5f, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertRejected(() -> norm(a, a, w, epsilon, group), "epsilon is " + epsilon);
        }
    }

    private static NormedResidual norm(
            NDArray partial, NDArray residual, NDArray weight, float epsilon, ProcessGroup group) {
        return FusedOps.allReduceRmsNorm(partial, residual, weight, epsilon, group);
    }

    @Test
    @SuppressWarnings("try") // the scope is not named in the body
    void aGradientIsRefused() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a = manager.ones(new Shape(2, 4));
                        NDArray w = manager.ones(new Shape(4));
                        w.setRequiresGradient(true);
                        assertRejected(
                                () -> norm(a, a, w, 0, group),
                                "allReduceRmsNorm: weight requires a gradient");
                        try (GradientScope scope = GradientScope.open()) {
                            assertRejected(
                                    () -> norm(a, a, w, 0, group),
                                    "the operator has none",
                                    "DifferentiableCollectives.allReduce");
                            norm(a, a, w.stopGradient(), 0, group);
                        }
                        NoGradient.run(() -> norm(a, a, w, 0, group));
                    }
                });
    }

    @Test
    void callsThatDifferAreNamed() {
        NormCase after = NormCase.grid().get(0);
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a = manager.ones(new Shape(2 + group.rank(), 4));
                        NDArray w = manager.ones(new Shape(4));
                        String message =
                                assertThrows(
                                                CollectiveMismatchException.class,
                                                () -> norm(a, a, w, 0, group))
                                        .getMessage();
                        assertTrue(message.contains("(2, 4)"), message);
                        assertTrue(message.contains("(3, 4)"), message);
                    }
                    after.check(group, 1);
                });
    }

    @Test
    void aRankThatDoesNotCallIsNamed() {
        CountDownLatch failed = new CountDownLatch(1);
        LocalRanks.run(
                2,
                group -> {
                    if (group.rank() == 1) {
                        Replays.await(failed);
                        return;
                    }
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a = manager.ones(new Shape(2, 4));
                        int before = manager.getManagedArrays().size();
                        ProcessGroup hasty = group.withTimeout(Duration.ofMillis(200));
                        CollectiveTimeoutException e =
                                assertThrows(
                                        CollectiveTimeoutException.class,
                                        () -> norm(a, a, a.get(0), 0, hasty));
                        assertEquals(List.of(1), e.missingRanks());
                        assertEquals(before + 1, manager.getManagedArrays().size()); // a.get(0)
                    } finally {
                        failed.countDown();
                    }
                });
    }

    @Test
    void temporariesAreClosed() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a =
                                TestArrays.random(manager, ScalarType.BFLOAT16, new Shape(3, 5), 1);
                        NDArray w =
                                TestArrays.randomStrided(
                                        manager, ScalarType.BFLOAT16, new Shape(5), 2);
                        int before = manager.getManagedArrays().size();
                        for (int i = 0; i < 3; i++) {
                            NormedResidual result = norm(a, a, w, 1e-5f, group);
                            result.residual().close();
                            result.norm().close();
                        }
                        assertEquals(before, manager.getManagedArrays().size());
                    }
                });
    }
}
