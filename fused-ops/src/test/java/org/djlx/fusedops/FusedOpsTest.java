// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.Fallbacks;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The fused operators compared with DJL's operators, on the paths of the CPU. */
@Timeout(300)
class FusedOpsTest {

    private static final List<ScalarType> TYPES =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16);

    /** Runs code on ranks, and checks the number of calls by path. */
    private static void expect(
            int worldSize,
            long bufferSize,
            long pipelined,
            FallbackReason reason,
            long fallbacks,
            Consumer<ProcessGroup> body) {
        try (UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(worldSize, bufferSize, body);
            assertEquals(
                    pipelined * worldSize,
                    usage.calls(Path.PIPELINED) + usage.calls(Path.GATHERED));
            assertEquals(fallbacks * worldSize, usage.calls(Path.NCCL));
            assertEquals(0, usage.calls(Path.FUSED));
            if (reason != null) {
                assertEquals(fallbacks * worldSize, usage.fallbacks(reason));
                long named =
                        usage.choices().getOrDefault(new Choice(Path.NCCL, reason.toString()), 0L);
                assertEquals(fallbacks * worldSize, named);
            }
        }
    }

    static List<FusedCase> gatherGrid() {
        List<FusedCase> cases = new ArrayList<>();
        for (ScalarType type : TYPES) {
            // One row per rank, odd sizes, an empty batch, an inner dimension of 0, several Bs.
            cases.add(new FusedCase(type, new Shape(1, 8), List.of(4), 0, false, 1));
            cases.add(new FusedCase(type, new Shape(5, 7), List.of(3, 1, 9), 0, false, 2));
            cases.add(new FusedCase(type, new Shape(0, 3), List.of(2), 0, false, 3));
            cases.add(new FusedCase(type, new Shape(3, 0), List.of(2), 0, false, 4));
            cases.add(new FusedCase(type, new Shape(2, 3, 4), List.of(5), 0, false, 5));
            cases.add(new FusedCase(type, new Shape(2, 3, 4), List.of(5), 1, false, 6));
            cases.add(new FusedCase(type, new Shape(2, 0, 4), List.of(5, 0), 1, false, 7));
            cases.add(new FusedCase(type, new Shape(2, 3, 2, 5), List.of(3), -2, false, 8));
            cases.add(new FusedCase(type, new Shape(3, 4, 5), List.of(6, 2), 1, true, 9));
            cases.add(new FusedCase(type, new Shape(33, 65), List.of(31), -2, true, 10));
            // Small shards whose slots have no gaps are gathered before one matmul.
            cases.add(new FusedCase(type, new Shape(16, 32), List.of(8, 3), 0, false, 11));
            cases.add(new FusedCase(type, new Shape(2, 16, 32), List.of(5), 1, true, 12));
        }
        return cases;
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4, 8})
    void allGatherMatmulPipelined(int worldSize) {
        List<FusedCase> grid = gatherGrid();
        expect(
                worldSize,
                1 << 20,
                2L * grid.size(),
                null,
                0,
                group -> grid.forEach(c -> c.checkAllGatherMatmul(group, 2)));
    }

    /** Small shards take the path GATHERED if their slots have no gaps. */
    @Test
    void choicesAreCountedWithTheirReason() {
        FusedCase even =
                new FusedCase(ScalarType.FLOAT32, new Shape(16, 32), List.of(8), 0, false, 1);
        FusedCase odd = new FusedCase(ScalarType.FLOAT32, new Shape(5, 7), List.of(3), 0, false, 2);
        try (UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(
                    2,
                    1 << 20,
                    group -> {
                        even.checkAllGatherMatmul(group, 2);
                        odd.checkAllGatherMatmul(group, 1);
                    });
            Map<Choice, Long> expected =
                    Map.of(
                            new Choice(Path.GATHERED, "2048 bytes from rank to rank"), 4L,
                            new Choice(Path.PIPELINED, "140 bytes from rank to rank"), 2L);
            assertEquals(expected, usage.choices());
            assertEquals(6, usage.calls());
        }
    }

    static List<FusedCase> lastGatherGrid() {
        List<FusedCase> cases = new ArrayList<>();
        for (ScalarType type : TYPES) {
            cases.add(new FusedCase(type, new Shape(5, 3), List.of(4), 1, false, 1));
            cases.add(new FusedCase(type, new Shape(2, 3, 4), List.of(4, 1), -1, true, 2));
            cases.add(new FusedCase(type, new Shape(0, 3), List.of(2), 1, false, 3));
            cases.add(new FusedCase(type, new Shape(4, 0), List.of(2), 1, false, 4));
            cases.add(new FusedCase(type, new Shape(33, 65), List.of(31, 7), 1, true, 5));
            cases.add(new FusedCase(type, new Shape(16, 32), List.of(8), -1, false, 6));
        }
        return cases;
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4})
    void matmulAllReduce(int worldSize) {
        List<FusedCase> grid = byFirstDimension(scatterGrid(worldSize));
        expect(
                worldSize,
                1 << 20,
                0,
                null,
                2L * grid.size(),
                group -> grid.forEach(c -> c.checkMatmulAllReduce(group)));
    }

    /** Returns the cases whose parts, one after the other, are the whole product. */
    static List<FusedCase> byFirstDimension(List<FusedCase> grid) {
        return grid.stream().filter(c -> c.dim() == 0).toList();
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4, 8})
    void allGatherMatmulAlongLastDimension(int worldSize) {
        List<FusedCase> grid = lastGatherGrid();
        expect(
                worldSize,
                1 << 20,
                2L * grid.size(),
                null,
                0,
                group -> grid.forEach(c -> c.checkAllGatherMatmul(group, 2)));
    }

    static List<FusedCase> scatterGrid(int worldSize) {
        int w = worldSize;
        List<FusedCase> cases = new ArrayList<>();
        for (ScalarType type : TYPES) {
            cases.add(new FusedCase(type, new Shape(w, 8), List.of(4), 0, false, 1));
            cases.add(new FusedCase(type, new Shape(5 * w, 7), List.of(3), 0, false, 2));
            cases.add(new FusedCase(type, new Shape(0, 3), List.of(2), 0, false, 3));
            cases.add(new FusedCase(type, new Shape(w, 0), List.of(2), 0, false, 4));
            cases.add(new FusedCase(type, new Shape(2 * w, 3, 4), List.of(5), 0, false, 5));
            cases.add(new FusedCase(type, new Shape(2, 3 * w, 4), List.of(5), 1, false, 6));
            cases.add(new FusedCase(type, new Shape(2, 3, 4), List.of(5 * w), 2, false, 7));
            cases.add(new FusedCase(type, new Shape(3, 4 * w, 5), List.of(6), -2, true, 8));
            cases.add(new FusedCase(type, new Shape(7, 9), List.of(2 * w), -1, true, 9));
            cases.add(new FusedCase(type, new Shape(33 * w, 65), List.of(31), 0, true, 10));
            // Small parts whose slots have no gaps are scattered after one matmul.
            cases.add(new FusedCase(type, new Shape(16 * w, 7), List.of(32), 0, false, 11));
            cases.add(new FusedCase(type, new Shape(3, 16 * w, 7), List.of(64), 1, true, 12));
        }
        return cases;
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4, 8})
    void matmulReduceScatterPipelined(int worldSize) {
        List<FusedCase> grid = scatterGrid(worldSize);
        expect(
                worldSize,
                1 << 20,
                4L * grid.size(),
                null,
                0,
                group ->
                        grid.forEach(
                                c -> {
                                    c.checkMatmulReduceScatter(group, ReduceOp.SUM, 2);
                                    c.checkMatmulReduceScatter(group, ReduceOp.AVG, 2);
                                }));
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 8})
    void forcedFallbackGivesTheSame(int worldSize) {
        List<FusedCase> gathers = gatherGrid();
        List<FusedCase> scatters = scatterGrid(worldSize);
        try (FusedOps.Scope scope = FusedOps.forceFallback()) {
            assertNotNull(scope);
            expect(
                    worldSize,
                    1 << 20,
                    0,
                    FallbackReason.FORCED,
                    gathers.size() + scatters.size(),
                    group -> {
                        gathers.forEach(c -> c.checkAllGatherMatmul(group, 1));
                        scatters.forEach(c -> c.checkMatmulReduceScatter(group, ReduceOp.AVG, 1));
                    });
        }
    }

    /** Rank r has A = r + 1 and weights 1 for gates and 2 for values, so silu(a) * 2 a. */
    @Test
    void allGatherGatedAppliesTheActivation() {
        LocalRanks.run(
                2,
                1 << 20,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a = manager.create(new float[] {group.rank() + 1}, new Shape(1, 1));
                        NDArray b = manager.create(new float[] {1, 1, 2, 2}, new Shape(1, 4));
                        NDArray product = FusedOps.allGatherGated(a, b, ExactCase::gate, group);
                        assertEquals(new Shape(2, 2), product.getShape());
                        float[] actual = product.toFloatArray();
                        for (int i = 0; i < actual.length; i++) {
                            double gate = 1 + i / 2;
                            double expected = gate / (1 + Math.exp(-gate)) * 2 * gate;
                            assertEquals(expected, actual[i], 1e-6 * expected);
                        }
                        NDArray odd = manager.ones(new Shape(1, 3));
                        String message =
                                assertThrows(
                                                IllegalArgumentException.class,
                                                () ->
                                                        FusedOps.allGatherGated(
                                                                a, odd, ExactCase::gate, group))
                                        .getMessage();
                        assertTrue(message.contains("3 columns"), message);
                    }
                });
    }

    @Test
    void gradientsFlowThroughTheActivation() {
        LocalRanks.run(
                2,
                1 << 20,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch");
                            GradientScope scope = GradientScope.open()) {
                        NDArray a = manager.ones(new Shape(1, 1));
                        NDArray b = manager.create(new float[] {3, 5}, new Shape(1, 2));
                        a.setRequiresGradient(true);
                        NDArray product =
                                FusedOps.allGatherGated(
                                        a,
                                        b,
                                        both -> both.get(":, 0:1").mul(both.get(":, 1:2")),
                                        group);
                        scope.backward(product.sum());
                        // Each of 2 ranks computes 3 a * 5 a of this shard.
                        assertEquals(2 * 2 * 15f, a.getGradient().getFloat());
                    }
                });
    }

    @SuppressWarnings("try") // the scope is not named in the body
    @Test
    void measurePathsChangesNothingOnCpus() {
        List<FusedCase> gathers = gatherGrid();
        try (UsageCounter usage = FusedOps.countUsage()) {
            expect(
                    2,
                    1 << 20,
                    gathers.size(),
                    null,
                    0,
                    group -> {
                        try (FusedOps.Scope measuring = FusedOps.measurePaths(group)) {
                            gathers.forEach(c -> c.checkAllGatherMatmul(group, 1));
                        }
                    });
            assertEquals(2L * gathers.size(), usage.calls());
        }
        assertThrows(IllegalArgumentException.class, () -> FusedOps.measurePaths(null));
    }

    @Test
    void scopesMayBeClosedTwice() {
        FusedOps.Scope twice = FusedOps.force(Path.GATHERED);
        twice.close();
        twice.close();
        assertFalse(Fallbacks.isForced(Path.GATHERED));
        try (FusedOps.Scope again = FusedOps.force(Path.GATHERED)) {
            assertTrue(Fallbacks.isForced(Path.GATHERED), again::toString);
        }
    }

    /** Calls are counted, and their fallback is forced, by operator. */
    @Test
    void forcesTheFallbackOfOneOperator() {
        FusedCase small =
                new FusedCase(ScalarType.FLOAT32, new Shape(4, 8), List.of(4), 0, false, 1);
        Consumer<ProcessGroup> both =
                group -> {
                    small.checkAllGatherMatmul(group, 1);
                    small.checkMatmulReduceScatter(group, ReduceOp.SUM, 1);
                };
        try (UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(
                    2,
                    1 << 20,
                    0,
                    group -> {
                        both.accept(group);
                        group.barrier().await();
                        try (FusedOps.Scope scope = FusedOps.forceFallback("matmulReduceScatter")) {
                            assertNotNull(scope);
                            group.barrier().await();
                            both.accept(group);
                            group.barrier().await();
                        }
                        group.barrier().await();
                        both.accept(group);
                    });
            assertEquals(6, overBuffers(usage, "allGatherMatmul"));
            assertEquals(4, overBuffers(usage, "matmulReduceScatter"));
            assertEquals(2, usage.calls("matmulReduceScatter", Path.NCCL));
            assertEquals(2, usage.fallbacks("matmulReduceScatter", FallbackReason.FORCED));
            assertEquals(0, usage.fallbacks("allGatherMatmul", FallbackReason.FORCED));
            assertEquals(12, usage.calls());
        }
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> FusedOps.forceFallback("allReduce"))
                        .getMessage();
        assertTrue(message.contains("allReduceRmsNorm"), message);
    }

    private static long overBuffers(UsageCounter usage, String operator) {
        return usage.calls(operator, Path.PIPELINED) + usage.calls(operator, Path.GATHERED);
    }

    @Test
    void tinyOrNoBuffersFallBack() {
        FusedCase large =
                new FusedCase(ScalarType.FLOAT32, new Shape(64, 64), List.of(64), 0, false, 1);
        FusedCase small =
                new FusedCase(ScalarType.FLOAT32, new Shape(4, 8), List.of(4), 0, false, 1);
        // Two halves of two slots of 16 KiB each are just enough, for a shard and for a part.
        FusedCase wide =
                new FusedCase(ScalarType.FLOAT32, new Shape(128, 64), List.of(64), 0, false, 1);
        Consumer<ProcessGroup> both =
                group -> {
                    large.checkAllGatherMatmul(group, 1);
                    wide.checkMatmulReduceScatter(group, ReduceOp.SUM, 1);
                };
        expect(2, 64 << 10, 2, null, 0, both);
        expect(2, (64 << 10) - 1, 2, null, 0, both); // in rounds
        expect(2, 1 << 10, 2, null, 0, both); // two windows of 256 bytes in each half
        expect(2, (1 << 10) - 1, 0, FallbackReason.BUFFER_TOO_SMALL, 2, both);
        expect(2, 0, 0, FallbackReason.NO_P2P_BUFFERS, 2, both);
        expect(2, 8 << 10, 1, null, 0, group -> small.checkAllGatherMatmul(group, 1));
    }

    /**
     * Parts that do not fit into a buffer of 1 MiB: 3 MiB and odd sizes that no window divides. In
     * two cases a row alone is larger than a window.
     */
    static List<FusedCase> largeGathers() {
        ScalarType wide = ScalarType.FLOAT32;
        ScalarType half = ScalarType.BFLOAT16;
        return List.of(
                new FusedCase(wide, new Shape(12, 65_537), List.of(3, 2), 0, false, 1),
                new FusedCase(half, new Shape(3, 2, 131_075), List.of(2), 1, true, 2),
                new FusedCase(wide, new Shape(257, 4_001), List.of(3), 1, false, 3));
    }

    static List<FusedCase> largeScatters(int w) {
        ScalarType wide = ScalarType.FLOAT32;
        ScalarType half = ScalarType.BFLOAT16;
        return List.of(
                new FusedCase(wide, new Shape(12 * w, 3), List.of(65_537), 0, false, 4),
                new FusedCase(half, new Shape(3, 2 * w, 2), List.of(131_075), 1, true, 5),
                new FusedCase(wide, new Shape(257, 3), List.of(4_001 * w), 1, false, 6));
    }

    @ParameterizedTest
    @ValueSource(ints = {2, 3, 4})
    void anySizeIsPipelined(int worldSize) {
        List<FusedCase> gathers = largeGathers();
        List<FusedCase> scatters = largeScatters(worldSize);
        expect(
                worldSize,
                1 << 20,
                gathers.size() * 2L + scatters.size() * 2L,
                null,
                0,
                group -> {
                    gathers.forEach(c -> c.checkAllGatherMatmul(group, 2));
                    scatters.forEach(c -> c.checkMatmulReduceScatter(group, ReduceOp.SUM, 1));
                    scatters.forEach(c -> c.checkMatmulReduceScatter(group, ReduceOp.AVG, 1));
                });
    }

    /** Rounds change how parts are sent, not how they are computed. */
    @Test
    void roundsGiveTheSameBits() {
        List<double[]> results = new ArrayList<>();
        for (long bufferSize : List.of(16L << 20, 16L << 10)) {
            LocalRanks.run(
                    3,
                    bufferSize,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            NDArray a =
                                    TestArrays.random(
                                            manager,
                                            ScalarType.BFLOAT16,
                                            new Shape(96, 301),
                                            group.rank());
                            NDArray b =
                                    TestArrays.random(
                                            manager, ScalarType.BFLOAT16, new Shape(301, 77), 9);
                            NDArray up =
                                    FusedOps.allGatherMatmul(a, List.of(b), 0, group)
                                            .outputs()
                                            .get(0);
                            NDArray down =
                                    FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group);
                            if (group.rank() == 1) {
                                results.add(TestArrays.values(up));
                                results.add(TestArrays.values(down));
                            }
                        }
                    });
        }
        assertArrayEquals(results.get(0), results.get(2));
        assertArrayEquals(results.get(1), results.get(3));
    }

    /** Random sizes, dimensions, types, layouts and ranks. */
    @ParameterizedTest
    @ValueSource(longs = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20})
    void randomCases(long seed) {
        Random random = new Random(seed);
        int worldSize = 1 + random.nextInt(5);
        List<Consumer<ProcessGroup>> checks = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            ScalarType type = TYPES.get(random.nextInt(TYPES.size()));
            long[] sizes = random.longs(2 + random.nextInt(3), 0, 9).toArray();
            int dim = random.nextInt(sizes.length);
            boolean strided = random.nextBoolean();
            List<Integer> columns =
                    IntStream.range(0, 1 + random.nextInt(3))
                            .mapToObj(k -> random.nextInt(12))
                            .toList();
            long salt = random.nextInt(1000);
            if (random.nextBoolean()) {
                Shape shape = new Shape(sizes);
                FusedCase c = new FusedCase(type, shape, columns, dim, strided, salt);
                checks.add(group -> c.checkAllGatherMatmul(group, 1));
            } else {
                boolean last = dim == sizes.length - 1;
                List<Integer> n = List.of(columns.get(0) * (last ? worldSize : 1));
                sizes[dim] *= last ? 1 : worldSize;
                ReduceOp op = random.nextBoolean() ? ReduceOp.SUM : ReduceOp.AVG;
                FusedCase c = new FusedCase(type, new Shape(sizes), n, dim, strided, salt);
                checks.add(group -> c.checkMatmulReduceScatter(group, op, 1));
            }
        }
        // A small buffer: some calls send parts in rounds, others send whole parts.
        LocalRanks.run(worldSize, 2 << 10, group -> checks.forEach(check -> check.accept(group)));
    }
}
