// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.internal.cudap2p.Replays;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Machine;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.GpuRates;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The fused operators on all GPUs of the machine, with ranks as threads. */
@Tag("gpu")
@Timeout(300)
class FusedOpsGpuTest {

    private static final long HEAP = 32 << 20;
    private static final int INTEGER_CALLS = 20;

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    static CudaP2pOptions options(long bufferSize) {
        return P2pRanks.options().optBufferSize(bufferSize).optHeapSize(HEAP).build();
    }

    private void run(long bufferSize, Consumer<ProcessGroup> body) {
        run(options(bufferSize), body);
    }

    private void run(CudaP2pOptions options, Consumer<ProcessGroup> body) {
        LocalRanks.run(
                ProcessGroups.local("cuda_p2p", worldSize, options),
                group -> P2pRanks.run(group, () -> body.accept(group)));
    }

    private void expect(
            long bufferSize, long pipelined, long fallbacks, Consumer<ProcessGroup> body) {
        try (UsageCounter usage = FusedOps.countUsage()) {
            run(bufferSize, body);
            // For small sizes, for which host time dominates, the model may choose NCCL.
            long chosen = usage.fallbacks(FallbackReason.NCCL_IS_FASTER);
            assertEquals(pipelined * worldSize, usage.calls() - usage.calls(Path.NCCL) + chosen);
            assertEquals(fallbacks * worldSize, usage.calls(Path.NCCL) - chosen);
        }
    }

    @Test
    void allGatherMatmul() {
        List<FusedCase> grid = FusedOpsTest.gatherGrid();
        expect(8 << 20, 2L * grid.size(), 0, g -> grid.forEach(c -> c.checkAllGatherMatmul(g, 2)));
    }

    @Test
    void matmulReduceScatter() {
        List<FusedCase> grid = FusedOpsTest.scatterGrid(worldSize);
        expect(
                8 << 20,
                4L * grid.size(),
                0,
                group ->
                        grid.forEach(
                                c -> {
                                    c.checkMatmulReduceScatter(group, ReduceOp.SUM, 2);
                                    c.checkMatmulReduceScatter(group, ReduceOp.AVG, 2);
                                }));
    }

    @Test
    void measuredPathsAreAgreedOnAndKept() {
        List<FusedCase> gathers = FusedOpsTest.gatherGrid();
        List<FusedCase> scatters = FusedOpsTest.scatterGrid(worldSize);
        Consumer<ProcessGroup> all =
                group -> {
                    gathers.forEach(c -> c.checkAllGatherMatmul(group, 2));
                    scatters.forEach(c -> c.checkMatmulReduceScatter(group, ReduceOp.SUM, 2));
                };
        run(
                8 << 20,
                group -> {
                    all.accept(group); // Plans of the cost model, which the measurement replaces.
                    try (FusedOps.Scope measuring = FusedOps.measurePaths(group)) {
                        assertNotNull(measuring);
                        all.accept(group);
                    }
                    group.barrier().await();
                    try (UsageCounter usage = FusedOps.countUsage()) {
                        group.barrier().await();
                        all.accept(group);
                        group.barrier().await();
                        List<String> reasons =
                                usage.choices().keySet().stream().map(Choice::why).toList();
                        assertFalse(reasons.isEmpty());
                        assertTrue(
                                reasons.stream().allMatch(FusedOpsGpuTest::isMeasured),
                                reasons::toString);
                    }
                });
    }

    @Test
    void measuredLinksOfH200sKeepTheConstantsOfTheModel() {
        run(
                64 << 20,
                group -> {
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    String gpu = buffers.gpuRates().map(GpuRates::gpu).orElse("");
                    Assumptions.assumeTrue(gpu.contains("H200"), gpu);
                    buffers.linkRate()
                            .ifPresent(
                                    rate ->
                                            assertEquals(
                                                    Machine.H200,
                                                    Machine.H200.withLinks(rate),
                                                    rate + " GB/s"));
                });
    }

    /** The second group, as one of a later process, calls no path only to measure it. */
    @Test
    void measuredTimesAreKeptByTheMachine() {
        List<FusedCase> cases = FusedOpsTest.byFirstDimension(FusedOpsTest.gatherGrid());
        for (int round = 0; round < 2; round++) {
            try (UsageCounter usage = FusedOps.countUsage()) {
                run(
                        8 << 20,
                        group -> {
                            try (FusedOps.Scope measuring = FusedOps.measurePaths(group)) {
                                assertNotNull(measuring);
                                cases.forEach(one -> one.checkAllGatherMatmul(group, 2));
                            }
                        });
                List<String> reasons = usage.choices().keySet().stream().map(Choice::why).toList();
                assertTrue(round == 0 || !reasons.contains("measured"), reasons::toString);
            }
        }
    }

    /** The first call agrees on sizes; calls of other sizes that ranks know the same keep them. */
    @Test
    void ranksOfDifferentSizesChooseForTheLargest() {
        try (UsageCounter usage = FusedOps.countUsage()) {
            run(
                    8 << 20,
                    group -> {
                        multiply(group, 64 * (group.rank() + 1));
                        multiply(group, 128);
                        multiply(group, 64 * (group.rank() + 1));
                    });
            String largest = "with an inner dimension of " + 64 * worldSize + ":";
            Set<Choice> choices = usage.choices().keySet();
            assertFalse(choices.isEmpty());
            for (Choice choice : choices) {
                assertTrue(choice.why().contains(largest), choice::why);
            }
        }
    }

    private void multiply(ProcessGroup group, long inner) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray a = manager.ones(new Shape(16L * worldSize, inner));
            NDArray b = manager.ones(new Shape(inner, 64));
            NDArray sum = FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group);
            NDArray width = manager.create((float) inner);
            group.allReduce(width, ReduceOp.SUM).await();
            assertEquals(width.getFloat(), sum.getFloat(3, 5));
            sum.close();
        }
    }

    /** Also a path that is the only one: where ranks share a GPU, NCCL is not possible. */
    private static boolean isMeasured(String why) {
        String paths = why.substring(why.lastIndexOf(": "));
        return why.startsWith("measured us: ") || P2pRanks.isShared() && !paths.contains(",");
    }

    @Test
    void matmulAllReduce() {
        List<FusedCase> grid =
                new ArrayList<>(FusedOpsTest.byFirstDimension(FusedOpsTest.scatterGrid(worldSize)));
        if (P2pRanks.isShared()) { // NCCL reduces float64, large and empty pieces, not on one GPU.
            grid.removeIf(c -> c.type() == ScalarType.FLOAT64 || c.shape().size() == 0);
        } else {
            for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)) {
                Shape rows = new Shape(5000L * worldSize, 40);
                grid.add(new FusedCase(type, rows, List.of(72), 0, false, 21));
            }
        }
        try (UsageCounter usage = FusedOps.countUsage()) {
            run(8 << 20, group -> grid.forEach(c -> c.checkMatmulAllReduce(group)));
            long inPieces = P2pRanks.isShared() ? 0 : 2L * 2 * worldSize;
            assertEquals(inPieces, usage.calls("matmulAllReduce", Path.PIPELINED));
        }
    }

    @SuppressWarnings("try") // the scope is not named in the body
    private void forced(Path path, Runnable body) {
        try (FusedOps.Scope scope = FusedOps.force(path)) {
            body.run();
        }
    }

    /** Skips a test of FUSED on GPUs without the kernel, which are not Hopper GPUs. */
    private static void requireKernel(Path path) {
        assumeTrue(path != Path.FUSED || isHopper(), "the GPU is not a Hopper");
    }

    /** Tells whether the GPUs have the fused kernel. */
    static boolean isHopper() {
        try (CudaDevice device = CudaDevice.open(Device.gpu(0))) {
            return device.architecture().equals("sm_90a");
        }
    }

    private void expectFused(long bufferSize, long calls, Consumer<ProcessGroup> body) {
        requireKernel(Path.FUSED);
        try (UsageCounter usage = FusedOps.countUsage()) {
            forced(Path.FUSED, () -> run(bufferSize, body));
            assertEquals(calls * worldSize, usage.calls(Path.FUSED));
        }
    }

    private static final List<ScalarType> HALVES = List.of(ScalarType.FLOAT16, ScalarType.BFLOAT16);

    /**
     * Full and partial tiles, one and many tiles, row-major and column-major Bs, all dimensions of
     * A.
     */
    @Test
    void allGatherMatmulFused() {
        List<FusedCase> grid = new ArrayList<>();
        for (ScalarType type : HALVES) {
            grid.add(new FusedCase(type, new Shape(8, 8), List.of(8), 0, false, 1));
            grid.add(new FusedCase(type, new Shape(1, 16), List.of(8, 72, 8, 264), 0, false, 2));
            grid.add(new FusedCase(type, new Shape(128, 64), List.of(256), 0, false, 3));
            grid.add(new FusedCase(type, new Shape(200, 136), List.of(264, 520), 0, false, 4));
            grid.add(new FusedCase(type, new Shape(2, 3, 16), List.of(24), 0, false, 5));
            grid.add(new FusedCase(type, new Shape(2, 150, 72), List.of(40), 1, false, 6));
            grid.add(new FusedCase(type, new Shape(33, 64), List.of(32, 40), -2, true, 7));
            grid.add(new FusedCase(type, new Shape(700, 1032), List.of(1032), 0, false, 8));
        }
        expectFused(
                64 << 20, 3L * grid.size(), g -> grid.forEach(c -> c.checkAllGatherMatmul(g, 3)));
    }

    /** Full and partial tiles, of both widths that the gated kernel has. */
    @Test
    void allGatherGatedFused() {
        for (ScalarType type : HALVES) {
            expectFused(
                    64 << 20,
                    9,
                    group -> {
                        checkGated(group, type, 512, 256, 3072);
                        checkGated(group, type, 700, 264, 1032);
                        checkGated(group, type, 1000, 136, 3000);
                    });
        }
    }

    /**
     * Sums are exact. First no rank uses the gated operator, then all ranks, then ranks with even
     * numbers. So all ranks have loaded both kernels before they mix them: loading on a shared GPU
     * waits for running kernels.
     */
    private static void checkGated(
            ProcessGroup group, ScalarType type, int rows, int inner, int width) {
        int all = rows * group.worldSize();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            // On the CPU, which multiplies in float32.
            NDManager host = manager.newSubManager(Device.cpu());
            NDArray a = numbers(host, 1, all, inner);
            NDArray b = numbers(host, 2 + group.rank(), 2 * width, inner).div(16);
            NDArray both = a.matMul(b.transpose());
            NDArray gates = both.get(new NDIndex().addAllDim().addSliceDim(0, width));
            NDArray values = both.get(new NDIndex().addAllDim().addSliceDim(width, 2L * width));
            NDArray active = gates.getNDArrayInternal().sigmoid().mul(gates);
            float[] expected = active.mul(values).toFloatArray();
            int first = rows * group.rank();
            NDArray own = a.get(new NDIndex().addSliceDim(first, first + rows));
            NDArray shard = manager.create(own.toFloatArray(), own.getShape());
            shard = Torch.cast(shard, type);
            NDArray weight = manager.create(b.toFloatArray(), b.getShape());
            weight = Torch.cast(weight, type).transpose();
            for (int call = 0; call < 3; call++) {
                if (call == 0 || call == 2 && group.rank() % 2 == 1) {
                    FusedOps.allGatherMatmul(shard, List.of(weight), 0, group, false);
                    continue;
                }
                NDArray result =
                        FusedOps.allGatherGated(
                                shard,
                                weight,
                                product -> fail("not fused: " + product.getShape()),
                                group);
                assertEquals(new Shape(all, width), result.getShape());
                float[] actual =
                        TestArrays.awaited(Torch.cast(result, ScalarType.FLOAT32)).toFloatArray();
                for (int i = 0; i < actual.length; i++) {
                    double tolerance = Math.abs(expected[i]) / 200 + 1e-3;
                    if (!(Math.abs(expected[i] - actual[i]) <= tolerance)) {
                        assertEquals(expected[i], actual[i], tolerance, "element " + i);
                    }
                }
            }
        }
    }

    private static NDArray numbers(NDManager manager, long seed, int rows, int columns) {
        float[] numbers = new float[rows * columns];
        Random random = new Random(seed);
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = random.nextInt(5) - 2;
        }
        return manager.create(numbers, new Shape(rows, columns));
    }

    /** Unsupported gates: row-major B, odd units, too few columns for a tile. */
    @Test
    void otherGatesFallBackToTheActivation() {
        requireKernel(Path.FUSED);
        forced(
                Path.FUSED,
                () ->
                        run(
                                64 << 20,
                                group -> {
                                    try (NDManager manager =
                                            NDManager.newBaseManager(group.device(), "PyTorch")) {
                                        checkFallsBack(group, half(manager, 64, 6144));
                                        checkFallsBack(group, half(manager, 6136, 64).transpose());
                                        checkFallsBack(group, half(manager, 16, 64).transpose());
                                    }
                                }));
    }

    private static void checkFallsBack(ProcessGroup group, NDArray b) {
        NDArray a = half(b.getManager(), 512, 64);
        List<NDArray> activated = new ArrayList<>();
        UnaryOperator<NDArray> activation =
                both -> {
                    activated.add(ExactCase.gate(both));
                    return activated.get(0);
                };
        NDArray result = FusedOps.allGatherGated(a, b, activation, group);
        assertSame(activated.get(0), result);
        NDArray awaited = TestArrays.awaited(Torch.cast(result, ScalarType.FLOAT32));
        // 64 products of 1: silu(64) * 64.
        assertEquals(4096f, awaited.min().getFloat());
        assertEquals(4096f, awaited.max().getFloat());
    }

    private static NDArray half(NDManager manager, int rows, int columns) {
        return Torch.cast(manager.ones(new Shape(rows, columns)), ScalarType.BFLOAT16);
    }

    /** As for all-gather + matmul; also As whose rows must be padded, and As without columns. */
    @Test
    void matmulReduceScatterFused() {
        int w = worldSize;
        List<FusedCase> grid = new ArrayList<>();
        for (ScalarType type : HALVES) {
            grid.add(new FusedCase(type, new Shape(w, 8), List.of(8), 0, false, 1));
            grid.add(new FusedCase(type, new Shape(5 * w, 7), List.of(16), 0, false, 2));
            grid.add(new FusedCase(type, new Shape(w, 0), List.of(8), 0, false, 3));
            grid.add(new FusedCase(type, new Shape(128L * w, 64), List.of(256), 0, false, 4));
            grid.add(new FusedCase(type, new Shape(200L * w, 136), List.of(520), 0, false, 5));
            grid.add(new FusedCase(type, new Shape(2, 150L * w, 72), List.of(40), 1, false, 6));
            grid.add(new FusedCase(type, new Shape(33L * w, 65), List.of(32), 0, true, 7));
            grid.add(new FusedCase(type, new Shape(700L * w, 1032), List.of(1032), 0, false, 8));
        }
        boolean averages = Integer.bitCount(w) == 1;
        expectFused(
                64 << 20,
                (averages ? 4L : 2L) * grid.size(),
                group ->
                        grid.forEach(
                                c -> {
                                    c.checkMatmulReduceScatter(group, ReduceOp.SUM, 2);
                                    c.checkMatmulReduceScatter(group, ReduceOp.AVG, 2);
                                }));
    }

    @Test
    void randomCasesFused() {
        Random random = new Random(11);
        List<Consumer<ProcessGroup>> checks = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            ScalarType type = HALVES.get(random.nextInt(2));
            boolean strided = random.nextInt(4) == 0;
            long inner = 8L * (1 + random.nextInt(100));
            int rows = 1 + random.nextInt(random.nextBoolean() ? 20 : 600);
            List<Integer> columns =
                    random.ints(1 + random.nextInt(2), 1, 100).map(n -> 8 * n).boxed().toList();
            FusedCase gather = new FusedCase(type, new Shape(rows, inner), columns, 0, strided, i);
            FusedCase scatter =
                    new FusedCase(
                            type,
                            new Shape((long) rows * worldSize, inner - random.nextInt(3)),
                            columns,
                            0,
                            strided,
                            i);
            checks.add(group -> gather.checkAllGatherMatmul(group, 2));
            checks.add(group -> scatter.checkMatmulReduceScatter(group, ReduceOp.SUM, 2));
        }
        expectFused(64 << 20, 2L * checks.size(), group -> checks.forEach(c -> c.accept(group)));
    }

    /** All cases on the paths that need no fused kernel. */
    @ParameterizedTest
    @EnumSource(names = {"PIPELINED", "GATHERED"})
    void withoutTheKernel(Path path) {
        List<FusedCase> gathers = FusedOpsTest.gatherGrid();
        List<FusedCase> scatters = FusedOpsTest.scatterGrid(worldSize);
        try (UsageCounter usage = FusedOps.countUsage()) {
            forced(
                    path,
                    () ->
                            run(
                                    64 << 20,
                                    group -> {
                                        gathers.forEach(c -> c.checkAllGatherMatmul(group, 2));
                                        scatters.forEach(
                                                c ->
                                                        c.checkMatmulReduceScatter(
                                                                group, ReduceOp.SUM, 2));
                                        manyInFlight(group);
                                    }));
            assertEquals(
                    (2L * (gathers.size() + scatters.size()) + 100) * worldSize,
                    usage.calls() - usage.calls(Path.NCCL));
            assertTrue(usage.calls(path) >= 100L * worldSize, () -> usage.choices().toString());
        }
    }

    /**
     * Parts of up to 4 KiB are exchanged by one kernel, also between operations with copies: the
     * last cases have larger parts, or parts with gaps.
     */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void smallPartsArePipelinedByOneKernel(ScalarType type) {
        List<Consumer<ProcessGroup>> checks = new ArrayList<>();
        for (long[] shape : new long[][] {{16, 32}, {4, 64}, {8, 128}, {64, 128}, {5, 8}}) {
            FusedCase gather =
                    new FusedCase(type, new Shape(shape), List.of(16, 5), 0, false, shape[0]);
            Shape rows = new Shape(shape[0] * worldSize, shape[1]);
            FusedCase scatter = new FusedCase(type, rows, List.of(32), 0, false, shape[0]);
            checks.add(group -> gather.checkAllGatherMatmul(group, 2));
            checks.add(group -> scatter.checkMatmulReduceScatter(group, ReduceOp.SUM, 2));
        }
        int turns = 20;
        try (UsageCounter usage = FusedOps.countUsage()) {
            forced(
                    Path.PIPELINED,
                    () ->
                            run(
                                    8 << 20,
                                    group -> {
                                        for (int turn = 0; turn < turns; turn++) {
                                            checks.forEach(check -> check.accept(group));
                                        }
                                    }));
            assertEquals(2L * turns * checks.size() * worldSize, usage.calls(Path.PIPELINED));
        }
    }

    /**
     * FUSED is not possible for 5 columns, so ranks with them exchange the small shards by a kernel
     * beside the fused kernel of rank 0. Before, all ranks run each of both, as loading a kernel on
     * a shared GPU waits for running kernels. Products of small integers are exact.
     */
    @Test
    void oneRankRunsFusedWhileAnotherPipelinesASmallPart() {
        assumeTrue(isHopper(), "the GPU is not a Hopper");
        try (UsageCounter usage = FusedOps.countUsage()) {
            forced(
                    Path.FUSED,
                    () ->
                            run(
                                    8 << 20,
                                    group -> {
                                        checkIntegers(group, 16);
                                        checkIntegers(group, 5);
                                        checkIntegers(group, group.rank() == 0 ? 16 : 5);
                                    }));
            assertEquals(INTEGER_CALLS * (worldSize + 1L), usage.calls(Path.FUSED));
            assertEquals(INTEGER_CALLS * (2L * worldSize - 1), usage.calls(Path.PIPELINED));
        }
    }

    private static void checkIntegers(ProcessGroup group, int columns) {
        int rows = 16;
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDManager host = manager.newSubManager(Device.cpu());
            NDArray b = numbers(host, 100 + group.rank(), 32, columns);
            NDArray weight = manager.create(b.toFloatArray(), b.getShape());
            weight = Torch.cast(weight, ScalarType.BFLOAT16);
            for (int call = 0; call < INTEGER_CALLS; call++) {
                NDArray a = numbers(host, call, rows * group.worldSize(), 32);
                int first = rows * group.rank();
                NDArray own = a.get(new NDIndex().addSliceDim(first, first + rows));
                NDArray shard = manager.create(own.toFloatArray(), own.getShape());
                shard = Torch.cast(shard, ScalarType.BFLOAT16);
                GatheredMatmul result =
                        FusedOps.allGatherMatmul(shard, List.of(weight), 0, group, false);
                NDArray product = Torch.cast(result.outputs().get(0), ScalarType.FLOAT32);
                assertArrayEquals(
                        a.matMul(b).toFloatArray(), TestArrays.awaited(product).toFloatArray());
            }
        }
    }

    /** Alternates paths that use the same buffers: no operation may overtake another. */
    @Test
    void pathsInTurn() {
        FusedCase gather =
                new FusedCase(ScalarType.BFLOAT16, new Shape(256, 512), List.of(384), 0, false, 5);
        long rows = 256L * worldSize;
        FusedCase scatter =
                new FusedCase(ScalarType.BFLOAT16, new Shape(rows, 512), List.of(384), 0, false, 6);
        List<Path> paths = new ArrayList<>(List.of(Path.PIPELINED, Path.GATHERED));
        if (isHopper()) {
            paths.add(1, Path.FUSED);
        }
        CyclicBarrier turn = new CyclicBarrier(worldSize);
        Consumer<ProcessGroup> both =
                group -> {
                    gather.checkAllGatherMatmul(group, 2);
                    scatter.checkMatmulReduceScatter(group, ReduceOp.SUM, 2);
                };
        run(
                64 << 20,
                group -> {
                    for (int i = 0; i < 20; i++) {
                        both.accept(group);
                        await(turn); // What is in force counts for all ranks.
                        forced(
                                paths.get(i % paths.size()),
                                () -> {
                                    await(turn);
                                    both.accept(group);
                                    await(turn);
                                });
                        await(turn);
                    }
                });
    }

    private static void await(CyclicBarrier barrier) {
        try {
            barrier.await(60, TimeUnit.SECONDS);
        } catch (InterruptedException | BrokenBarrierException | TimeoutException e) {
            throw new IllegalStateException(e);
        }
    }

    /** The grid with each rank in its own process. */
    @Test
    void inProcesses() throws InterruptedException {
        try (RankProcesses ranks =
                new RankProcesses(worldSize, rank -> P2pRanks.environment(), FusedRankMain.class)) {
            ranks.awaitSuccess();
        }
    }

    /** If calls are compared before anything is sent, a mismatch does not break the group. */
    @Test
    void differentCallsFailOnAllRanksAndLeaveAVerifiedGroupUsable() {
        List<FusedCase> grid = FusedOpsTest.gatherGrid();
        run(
                P2pRanks.verifiedOptions().optBufferSize(8 << 20).optHeapSize(HEAP).build(),
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                        NDArray b = manager.ones(new Shape(3, 3));
                        NDArray c = manager.ones(new Shape(3L * worldSize, 3));
                        for (int i = 0; i < 10; i++) {
                            int odd = i % worldSize;
                            NDArray a = manager.ones(new Shape(group.rank() == odd ? 400 : 2, 3));
                            assertThrows(
                                    CollectiveMismatchException.class,
                                    () -> FusedOps.allGatherMatmul(a, List.of(b), 0, group));
                            assertThrows(
                                    CollectiveMismatchException.class,
                                    () -> {
                                        if (group.rank() == odd) {
                                            FusedOps.matmulReduceScatter(
                                                    c, b, ReduceOp.SUM, 0, group);
                                        } else {
                                            group.allReduce(c, ReduceOp.SUM).await();
                                        }
                                    });
                            grid.get(i).checkAllGatherMatmul(group, 2);
                        }
                    }
                });
    }

    /** As above, but the call of one rank is sent in rounds, or uses NCCL. */
    @Test
    void callsOfWhichOneDoesNotFitLeaveAVerifiedGroupUsable() {
        P2pRanks.requireNccl();
        List<FusedCase> grid = FusedOpsTest.gatherGrid();
        run(
                P2pRanks.verifiedOptions().optBufferSize(8 << 20).optHeapSize(HEAP).build(),
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                        NDArray b = manager.ones(new Shape(3, 3));
                        for (int i = 0; i < 4; i++) {
                            boolean odd = group.rank() == i % worldSize;
                            NDArray a = manager.ones(new Shape(odd ? 3_000_000 : 2, 3));
                            long rows = (odd ? 3_000_000L : 2L) * worldSize;
                            NDArray c = manager.ones(new Shape(rows, 3));
                            // The model may choose NCCL for ranks whose calls fit, too.
                            refused(
                                    () -> FusedOps.allGatherMatmul(a, List.of(b), 0, group),
                                    "(float32, (2, 3))",
                                    "(float32, (3000000, 3))");
                            refused(
                                    () ->
                                            FusedOps.matmulReduceScatter(
                                                    c, b, ReduceOp.SUM, 0, group),
                                    "educeScatter");
                            grid.get(i).checkAllGatherMatmul(group, 2);
                        }
                    }
                });
    }

    private static void refused(Executable call, String... called) {
        CollectiveMismatchException e = assertThrows(CollectiveMismatchException.class, call);
        for (String text : called) {
            assertTrue(e.getMessage().contains(text), e.getMessage());
        }
        assertFalse(e.isGroupBroken(), e.getMessage());
    }

    /**
     * If calls are compared behind the operation, a mismatch breaks the group, also if one call
     * falls back, or is the first with its sizes. The message names both calls.
     */
    @ParameterizedTest
    @CsvSource({"400, false", "400, true", "3000000, true"})
    void differentCallsBreakTheGroupOnAllRanks(int odd, boolean warm) {
        if (odd > 400) {
            P2pRanks.requireNccl();
        }
        run(
                8 << 20,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                        int rows = group.rank() == worldSize - 1 ? odd : 2;
                        NDArray a = manager.ones(new Shape(rows, 3));
                        NDArray b = manager.ones(new Shape(3, 3));
                        // On a shared GPU, loading a kernel on one rank waits for the others.
                        for (int each : warm ? new int[] {2, 400} : new int[0]) {
                            NDArray same = manager.ones(new Shape(each, 3));
                            FusedOps.allGatherMatmul(same, List.of(b), 0, group);
                        }
                        String message =
                                assertThrows(
                                                CollectiveException.class,
                                                () -> {
                                                    FusedOps.allGatherMatmul(
                                                            a, List.of(b), 0, group);
                                                    group.barrier().await(group.timeout());
                                                })
                                        .getMessage();
                        for (int each : new int[] {2, odd}) {
                            String called = "(float32, (" + each + ", 3))";
                            assertTrue(message.contains(called), message);
                        }
                    }
                });
    }

    /** Returns an array of ones, so that the product of a row is its sum. */
    private static NDArray ones(NDManager manager, ScalarType type, long rows, long columns) {
        return Torch.cast(manager.ones(new Shape(rows, columns)), type);
    }

    /** On the path that the model chooses, and on each path that can be recorded. */
    @ParameterizedTest
    @CsvSource({
        "FLOAT32,, 67108864",
        "FLOAT32, PIPELINED, 67108864",
        "FLOAT32, PIPELINED, 65536", // in rounds
        "FLOAT32, GATHERED, 67108864",
        "BFLOAT16, PIPELINED, 67108864",
        "BFLOAT16, GATHERED, 67108864",
        "BFLOAT16, FUSED, 67108864"
    })
    void graphs(ScalarType type, Path path, long bufferSize) {
        if (path == null) {
            run(bufferSize, group -> replay(group, type));
            return;
        }
        requireKernel(path);
        try (UsageCounter usage = FusedOps.countUsage()) {
            forced(path, () -> run(bufferSize, group -> replay(group, type)));
            usage.choices().keySet().forEach(choice -> assertEquals(path, choice.path()));
        }
    }

    /** Several tiles of rows and of columns, with a partial tile at the end of both. */
    private static void replay(ProcessGroup group, ScalarType type) {
        int k = 64;
        int rows = 300;
        int wide = 512;
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray b = ones(manager, type, k, 520);
            Replays.check(
                    group,
                    type,
                    new Shape(rows, k),
                    a -> {
                        try (NDArray product = gathered(a, b, group)) {
                            return product.get(":" + rows);
                        }
                    },
                    (value, ranks) -> k * value);
            Replays.check(
                    group,
                    type,
                    new Shape((long) rows * group.worldSize(), k),
                    a -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group),
                    (value, ranks) -> k * (ranks * value + ranks * (ranks - 1) / 2.0));
            // A graph of both operators: the second one takes the result of the first.
            NDArray up = ones(manager, type, k, wide);
            NDArray down = ones(manager, type, wide, 264);
            Replays.check(
                    group,
                    type,
                    new Shape(rows, k),
                    a -> {
                        try (NDArray product = gathered(a, up, group)) {
                            return FusedOps.matmulReduceScatter(
                                    product, down, ReduceOp.SUM, 0, group);
                        }
                    },
                    (value, ranks) -> (double) k * wide * ranks * (value + group.rank()));
        }
    }

    private static NDArray gathered(NDArray a, NDArray b, ProcessGroup group) {
        return FusedOps.allGatherMatmul(a, List.of(b), 0, group, false).outputs().get(0);
    }

    /** A kernel that waits for a missing rank ends at the timeout, which breaks the group. */
    @ParameterizedTest
    @CsvSource({"FLOAT32, PIPELINED", "BFLOAT16, FUSED"})
    void aGraphReplayedByOneRankAloneTimesOut(ScalarType type, Path path) {
        requireKernel(path);
        CountDownLatch replayed = new CountDownLatch(1);
        forced(path, () -> run(8 << 20, group -> replayAlone(group, type, replayed)));
    }

    private static void replayAlone(ProcessGroup group, ScalarType type, CountDownLatch replayed) {
        ProcessGroup hasty = group.withTimeout(Duration.ofSeconds(2));
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            NDArray a = ones(manager, type, 16, 64);
            NDArray b = ones(manager, type, 64, 32);
            device.synchronize();
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            Runnable operator = () -> gathered(a, b, group).close();
            try {
                for (int i = 0; i < 3; i++) {
                    operator.run();
                }
                stream.synchronize();
                try (CudaGraph graph = CudaGraph.capture(stream, () -> gathered(a, b, hasty))) {
                    for (int i = 0; i < 5 && group.rank() == 0; i++) {
                        graph.launch(stream);
                    }
                    stream.synchronize();
                    if (group.rank() == 0) {
                        replayed.countDown();
                    }
                    Replays.await(replayed); // What others call would be taken for a replay.
                    assertThrows(
                            CollectiveException.class,
                            () -> {
                                while (true) {
                                    operator.run();
                                    stream.synchronize();
                                }
                            });
                }
            } finally {
                guard.close();
            }
        }
    }

    @Test
    void lowContention() {
        List<LowContentionCase> gathers = LowContentionCase.grid(LowContentionTest.TYPES);
        List<LowContentionCase> scatters = LowContentionCase.grid(LowContentionTest.FLOATS);
        expect(
                8 << 20,
                gathers.size() + 2L * scatters.size(),
                0,
                group -> {
                    gathers.forEach(one -> LowContentionTest.allGather(group, one));
                    for (LowContentionCase one : scatters) {
                        LowContentionTest.reduceScatter(group, one, ReduceOp.SUM);
                        LowContentionTest.reduceScatter(group, one, ReduceOp.AVG);
                    }
                });
    }

    /** Sizes at which copies and later work overlap, checked after all calls are issued. */
    @Test
    void manyLowContentionInFlight() {
        List<LowContentionCase> cases =
                LowContentionCase.large(ScalarType.BFLOAT16, new Shape(300, 1024));
        run(
                64 << 20,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                        for (int round = 0; round < 5; round++) {
                            List<Runnable> checks = new ArrayList<>();
                            for (LowContentionCase one : cases) {
                                checks.add(one.allGather(group, manager));
                                checks.add(one.reduceScatter(group, manager, ReduceOp.SUM));
                            }
                            checks.forEach(Runnable::run);
                        }
                    }
                });
    }

    /** Parts that do not fit into a buffer of 1 MiB, along each dimension. */
    @Test
    void anySizeIsPipelined() {
        List<FusedCase> gathers = FusedOpsTest.largeGathers();
        List<FusedCase> scatters = FusedOpsTest.largeScatters(worldSize);
        try (UsageCounter usage = FusedOps.countUsage()) {
            forced(
                    Path.PIPELINED,
                    () ->
                            run(
                                    1 << 20,
                                    group -> {
                                        gathers.forEach(c -> c.checkAllGatherMatmul(group, 3));
                                        scatters.forEach(
                                                c ->
                                                        c.checkMatmulReduceScatter(
                                                                group, ReduceOp.SUM, 3));
                                    }));
            assertEquals(
                    3L * (gathers.size() + scatters.size()) * worldSize,
                    usage.calls(Path.PIPELINED));
        }
    }

    /** A gather along the last dimension adds the products of the shards in rank order. */
    @Test
    void allGatherMatmulAlongLastDimension() {
        List<FusedCase> grid = FusedOpsTest.lastGatherGrid();
        expect(8 << 20, 2L * grid.size(), 0, g -> grid.forEach(c -> c.checkAllGatherMatmul(g, 2)));
        expect(8 << 10, 2L * grid.size(), 0, g -> grid.forEach(c -> c.checkAllGatherMatmul(g, 2)));
    }

    /** Whole parts in slots, and parts in rounds. */
    @ParameterizedTest
    @ValueSource(longs = {8 << 20, 1 << 10})
    void pipelinesWithAComputationOfTheCaller(long bufferSize) {
        run(
                bufferSize,
                group -> {
                    CallerPipelineTest.check(group, new Shape(13, 7), DataType.FLOAT32);
                    CallerPipelineTest.check(group, new Shape(300, 64), DataType.INT32);
                });
    }

    @Test
    void fallbacks() {
        P2pRanks.requireNccl();
        FusedCase last =
                new FusedCase(ScalarType.BFLOAT16, new Shape(6, 4), List.of(5), 1, false, 1);
        FusedCase large =
                new FusedCase(ScalarType.FLOAT32, new Shape(64, 64), List.of(64), 0, true, 1);
        FusedCase wide =
                new FusedCase(
                        ScalarType.FLOAT32,
                        new Shape(64L * worldSize, 64),
                        List.of(64),
                        0,
                        true,
                        1);
        expect(
                1023,
                0,
                6,
                group -> {
                    last.checkAllGatherMatmul(group, 2);
                    large.checkAllGatherMatmul(group, 2);
                    wide.checkMatmulReduceScatter(group, ReduceOp.SUM, 2);
                });
        expect(0, 0, 1, group -> large.checkAllGatherMatmul(group, 1));
    }

    @Test
    void fallbacksInAHybridCubeMesh() {
        P2pRanks.requireNccl();
        Assumptions.assumeTrue(worldSize == 8, "a hybrid cube mesh has eight GPUs");
        FusedCase small =
                new FusedCase(ScalarType.FLOAT32, new Shape(64, 64), List.of(64), 0, true, 1);
        CudaP2pOptions mesh =
                P2pRanks.options().optTopology(GpuTopology.Kind.HYBRID_CUBE_MESH).build();
        try (UsageCounter usage = FusedOps.countUsage()) {
            run(
                    mesh,
                    group -> {
                        small.checkAllGatherMatmul(group, 1);
                        small.checkMatmulReduceScatter(group, ReduceOp.SUM, 1);
                    });
            assertEquals(2L * worldSize, usage.fallbacks(FallbackReason.NO_P2P_BUFFERS));
            assertEquals(2L * worldSize, usage.calls());
        }
    }

    /** Sizes at which pushes and matmuls overlap, with many operators in flight. */
    @Test
    void manyInFlight() {
        expect(64 << 20, 100, 0, this::manyInFlight);
    }

    private void manyInFlight(ProcessGroup group) {
        FusedCase gather =
                new FusedCase(ScalarType.BFLOAT16, new Shape(256, 512), List.of(384), 0, false, 5);
        FusedCase scatter =
                new FusedCase(
                        ScalarType.BFLOAT16,
                        new Shape(256L * worldSize, 512),
                        List.of(384),
                        0,
                        false,
                        6);
        for (int i = 0; i < 10; i++) {
            gather.checkAllGatherMatmul(group, 5);
            scatter.checkMatmulReduceScatter(group, ReduceOp.SUM, 5);
        }
    }

    /**
     * With two ranks, each reads partial sums from the buffer of the other, which may already run
     * the next operation. Operations that write slots of their own rank use the other half of the
     * buffer, which must not change here.
     */
    @Test
    void productsThatThePeerReadsLieInTheFirstHalf() {
        assumeTrue(worldSize == 2, "more ranks send what they have for each other");
        int k = 64;
        float mark = 77;
        expectFused(
                16 << 20,
                1,
                group -> {
                    ScalarType type = ScalarType.BFLOAT16;
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    long half = buffers.bufferSize() / 2;
                    Shape marks = new Shape(half / Float.BYTES);
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                        NDArray theirs =
                                buffers.p2pBuffer(
                                        manager, group.rank(), marks, ScalarType.FLOAT32, half);
                        NDArray marked = manager.full(marks, mark);
                        group.execute(
                                new OpType("mark"),
                                new Operation.Agreed(null, new long[0], null, 0),
                                operation -> {
                                    buffers.intraNodeBarrier(operation);
                                    Torch.copy(theirs, marked);
                                });
                        NDArray a = full(manager, new Shape(700, k), group.rank() + 1, type);
                        NDArray b = full(manager, new Shape(k, 1032), 1, type);
                        NDArray sum = FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group);
                        requireAll(sum, k * (1 + 2));
                        requireAll(theirs, (int) mark);
                    }
                });
    }

    private static NDArray full(NDManager manager, Shape shape, int value, ScalarType type) {
        try (NDArray floats = manager.full(shape, (float) value)) {
            return Torch.cast(floats, type);
        }
    }

    private static void requireAll(NDArray array, int expected) {
        for (double value : TestArrays.values(array)) {
            assertEquals(expected, value);
        }
    }

    /** Alternates operators between two streams without waiting. B is all ones. */
    @Test
    void twoStreams() {
        int k = 64;
        run(
                8 << 20,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                            CudaDevice device = CudaDevice.open(group.device());
                            CudaStream one = CudaStream.create(device);
                            CudaStream other = CudaStream.create(device)) {
                        NDArray b = manager.ones(new Shape(k, 16));
                        device.synchronize();
                        List<NDArray> outputs = new ArrayList<>();
                        for (int i = 0; i < 60; i++) {
                            CudaStream stream = i % 2 == 0 ? one : other;
                            CudaStreamGuard guard =
                                    Torch.cudaStreamGuard(group.device(), stream.handle());
                            NDArray a = manager.full(new Shape(8, k), (float) group.rank() + i);
                            outputs.add(
                                    FusedOps.allGatherMatmul(a, List.of(b), 0, group, false)
                                            .outputs()
                                            .get(0));
                            guard.close();
                        }
                        device.synchronize();
                        for (int i = 0; i < outputs.size(); i++) {
                            float[] values = TestArrays.awaited(outputs.get(i)).toFloatArray();
                            for (int j = 0; j < values.length; j++) {
                                int rank = j / (8 * 16);
                                assertEquals(k * (rank + i), values[j], "operator " + i);
                            }
                        }
                    }
                });
    }

    @Test
    void randomCases() {
        List<Consumer<ProcessGroup>> checks = new ArrayList<>();
        Random random = new Random(7);
        for (int i = 0; i < 60; i++) {
            ScalarType type =
                    Stream.of(
                                    ScalarType.FLOAT32,
                                    ScalarType.FLOAT64,
                                    ScalarType.FLOAT16,
                                    ScalarType.BFLOAT16)
                            .toList()
                            .get(random.nextInt(4));
            long[] sizes = random.longs(2 + random.nextInt(3), 0, 40).toArray();
            int dim = random.nextInt(sizes.length);
            boolean strided = random.nextBoolean();
            int n = random.nextInt(50);
            if (random.nextBoolean()) {
                FusedCase c =
                        new FusedCase(type, new Shape(sizes), List.of(n, n / 2), dim, strided, i);
                checks.add(group -> c.checkAllGatherMatmul(group, 1));
            } else {
                boolean last = dim == sizes.length - 1;
                sizes[dim] *= last ? 1 : worldSize;
                FusedCase c =
                        new FusedCase(
                                type,
                                new Shape(sizes),
                                List.of(last ? n * worldSize : n),
                                dim,
                                strided,
                                i);
                checks.add(group -> c.checkMatmulReduceScatter(group, ReduceOp.AVG, 1));
            }
        }
        run(2 << 20, group -> checks.forEach(check -> check.accept(group)));
    }
}
