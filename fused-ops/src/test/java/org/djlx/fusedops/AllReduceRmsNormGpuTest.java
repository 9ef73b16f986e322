// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;
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
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** All-reduce + RMSNorm on all GPUs of the machine, with ranks as threads. */
@Tag("gpu")
@Timeout(300)
class AllReduceRmsNormGpuTest {

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    /** Options with one-shot all-reduces up to 1 MiB and two-shot all-reduces up to 10 MiB. */
    static CudaP2pOptions options() {
        return P2pRanks.options().optBufferSize(8 << 20).build();
    }

    private void run(CudaP2pOptions options, Consumer<ProcessGroup> body) {
        LocalRanks.run(
                ProcessGroups.local("cuda_p2p", worldSize, options),
                group -> P2pRanks.run(group, () -> body.accept(group)));
    }

    private void runWithManager(CudaP2pOptions options, BiConsumer<ProcessGroup, NDManager> body) {
        run(
                options,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                        body.accept(group, manager);
                    }
                });
    }

    /** Checks how many calls of each rank ran as one kernel, and how many fell back. */
    private void expect(long fused, long fallbacks, Consumer<ProcessGroup> body) {
        try (UsageCounter usage = FusedOps.countUsage()) {
            run(options(), body);
            assertEquals(fused * worldSize, usage.calls(Path.FUSED));
            assertEquals(fallbacks * worldSize, usage.calls(Path.NCCL));
        }
    }

    /** Cases that run as one kernel: decode sizes, ends of packs, one element, other strides. */
    static List<NormCase> small() {
        List<NormCase> cases = new ArrayList<>(NormCase.grid());
        cases.removeIf(one -> one.shape().size() == 0);
        for (ScalarType type : NormCase.TYPES) {
            cases.add(new NormCase(type, new Shape(1, 4096), false, 1e-5f, 20));
            cases.add(new NormCase(type, new Shape(64, 2048), false, 1e-5f, 21));
            cases.add(new NormCase(type, new Shape(32, 8192), false, 1e-5f, 22));
            cases.add(new NormCase(type, new Shape(3, 12_032), false, 1e-5f, 23));
            cases.add(new NormCase(type, new Shape(200, 100), true, 1e-5f, 24));
            cases.add(new NormCase(type, new Shape(3000, 8), false, 1e-5f, 25));
        }
        return cases;
    }

    @Test
    void fused() {
        List<NormCase> small = small();
        expect(3L * small.size(), 0, group -> small.forEach(one -> one.check(group, 3)));
    }

    /**
     * Cases that fall back: two-shot and a kernel, rows too long for a thread block, no rows.
     * Without NCCL, which rounds in another way.
     */
    @Test
    void otherSizes() {
        List<NormCase> cases = new ArrayList<>();
        for (ScalarType type : NormCase.TYPES) {
            cases.add(new NormCase(type, new Shape(300, 4096), false, 1e-5f, 30));
            cases.add(new NormCase(type, new Shape(301, 4095), true, 1e-5f, 31));
            cases.add(new NormCase(type, new Shape(2, 30_000), false, 1e-5f, 32));
        }
        expect(0, 2L * cases.size(), group -> cases.forEach(one -> one.check(group, 2)));
    }

    /**
     * Norms in e4m3 have the bits of the 16-bit norm rounded by libtorch: in one kernel, and after
     * an all-reduce of its own. The second call of a shape overwrites the partial.
     */
    @Test
    void normsInE4m3() {
        List<Shape> shapes =
                List.of(
                        new Shape(1, 4096),
                        new Shape(64, 2048),
                        new Shape(2, 3, 40),
                        new Shape(200, 104),
                        new Shape(3, 12_032),
                        new Shape(3000, 8),
                        new Shape(300, 4096)); // too large for one kernel
        runWithManager(
                options(),
                (group, manager) -> {
                    for (ScalarType type : List.of(ScalarType.FLOAT16, ScalarType.BFLOAT16)) {
                        for (Shape shape : shapes) {
                            checkE4m3(group, manager, type, shape);
                        }
                    }
                    NDArray odd = Torch.cast(manager.ones(new Shape(2, 12)), ScalarType.FLOAT16);
                    NDArray weight = Torch.cast(manager.ones(new Shape(12)), ScalarType.FLOAT16);
                    NormedResidual outputs = e4m3(manager, odd, odd.getShape());
                    NDArray scales = manager.zeros(new Shape(2, 1));
                    Exception e =
                            assertThrows(
                                    IllegalArgumentException.class,
                                    () ->
                                            FusedOps.allReduceRmsNorm(
                                                    outputs, scales, odd, odd, weight, 0, group));
                    assertTrue(e.getMessage().contains("rows of 12 FLOAT16"), e::toString);
                });
    }

    private static NormedResidual e4m3(NDManager manager, NDArray residual, Shape shape) {
        return new NormedResidual(residual, Torch.empty(manager, shape, ScalarType.FLOAT8_E4M3FN));
    }

    private static void checkE4m3(
            ProcessGroup group, NDManager manager, ScalarType type, Shape shape) {
        long hidden = shape.getLastDimension();
        int rows = (int) (shape.size() / hidden);
        NDArray partial = TestArrays.random(manager, type, shape, 60 + group.rank());
        NDArray residual = TestArrays.random(manager, type, shape, 59);
        NDArray weight = TestArrays.random(manager, type, new Shape(hidden), 58);
        NormedResidual wide = FusedOps.allReduceRmsNorm(partial, residual, weight, 1e-5f, group);
        float[] norm =
                TestArrays.awaited(Torch.cast(wide.norm(), ScalarType.FLOAT32)).toFloatArray();
        float[] factors = new float[rows];
        for (int i = 0; i < norm.length; i++) {
            int row = (int) (i / hidden);
            factors[row] = Math.max(factors[row], Math.abs(norm[i]));
        }
        for (int i = 0; i < norm.length; i++) {
            norm[i] *= 448 / factors[(int) (i / hidden)];
        }
        double[] expected =
                TestArrays.values(
                        Torch.cast(
                                Torch.cast(manager.create(norm), ScalarType.FLOAT8_E4M3FN),
                                ScalarType.FLOAT32));
        long[] sizes = shape.getShape().clone();
        sizes[sizes.length - 1] = 1;
        NDArray scales = manager.zeros(new Shape(sizes));
        NDArray sum = Torch.empty(manager, shape, type);
        for (NDArray to : new NDArray[] {sum, partial}) {
            NormedResidual outputs = e4m3(manager, to, shape);
            FusedOps.allReduceRmsNorm(outputs, scales, partial, residual, weight, 1e-5f, group);
            String name = type + " " + shape;
            assertArrayEquals(
                    expected,
                    TestArrays.values(Torch.cast(outputs.norm(), ScalarType.FLOAT32)),
                    name);
            float[] actual = TestArrays.awaited(scales).toFloatArray();
            for (int row = 0; row < rows; row++) {
                assertEquals(factors[row] / 448, actual[row], name + ", row " + row);
            }
            assertArrayEquals(
                    TestArrays.values(wide.residual()), TestArrays.values(to), name + ": sum");
        }
    }

    @Test
    void noRows() {
        P2pRanks.requireNccl();
        NormCase none = new NormCase(ScalarType.BFLOAT16, new Shape(0, 64), false, 1e-5f, 33);
        expect(0, 1, group -> none.check(group, 1));
    }

    @Test
    void randomShapes() {
        List<NormCase> cases = AllReduceRmsNormTest.randomCases(5, 150, 40, 3000);
        run(options(), group -> cases.forEach(one -> one.check(group, 2)));
    }

    @Test
    void inProcesses() throws InterruptedException {
        try (RankProcesses ranks =
                new RankProcesses(worldSize, rank -> P2pRanks.environment(), NormRankMain.class)) {
            ranks.awaitSuccess();
        }
    }

    /**
     * Operations that share slots: one-shot and two-shot all-reduces, and operators with signals.
     */
    @Test
    void amongOtherOperations() {
        NormCase norm = new NormCase(ScalarType.BFLOAT16, new Shape(8, 4096), false, 1e-5f, 40);
        FusedCase gather =
                new FusedCase(ScalarType.BFLOAT16, new Shape(64, 128), List.of(72), 0, false, 41);
        runWithManager(
                options(),
                (group, manager) -> {
                    for (int i = 0; i < 30; i++) {
                        norm.check(group, 1 + i % 3);
                        int count = i % 2 == 0 ? 5000 : 600_000;
                        NDArray sum = manager.ones(new Shape(count));
                        group.allReduce(sum, ReduceOp.SUM).await();
                        assertEquals(
                                (double) worldSize * count,
                                TestArrays.awaited(sum.sum()).getFloat());
                        gather.checkAllGatherMatmul(group, 1);
                    }
                });
    }

    /**
     * Replays a graph 1,000 times with new inputs, some replays mixed with eager calls. Partials
     * have the value {@code v + r} on rank r, so that the sum of all is known.
     */
    @Test
    void graphs() {
        runWithManager(
                options(),
                (group, manager) -> {
                    for (Shape shape : List.of(new Shape(1, 4096), new Shape(48, 1000))) {
                        NDArray residual = manager.full(shape, 3f);
                        NDArray weight = manager.full(new Shape(shape.get(1)), 2f);
                        Function<NDArray, NormedResidual> call =
                                partial ->
                                        FusedOps.allReduceRmsNorm(
                                                partial, residual, weight, 500, group);
                        Replays.check(
                                group,
                                shape,
                                partial -> {
                                    NormedResidual result = call.apply(partial);
                                    result.norm().close();
                                    return result.residual();
                                },
                                (value, ranks) -> sum(value, ranks));
                        Replays.check(
                                group,
                                shape,
                                partial -> {
                                    NormedResidual result = call.apply(partial);
                                    result.residual().close();
                                    return result.norm();
                                },
                                (value, ranks) -> {
                                    double sum = sum(value, ranks);
                                    return 2 * sum / Math.sqrt(sum * sum + 500);
                                });
                    }
                });
    }

    private static double sum(int value, int ranks) {
        return 3 + ranks * value + ranks * (ranks - 1) / 2.0;
    }

    /**
     * As in decoding: one graph of several calls, each with the residual and norm of the one
     * before.
     */
    @Test
    void layersInOneGraph() {
        int layers = 20;
        run(
                options(),
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                            CudaDevice device = CudaDevice.open(group.device());
                            CudaStream stream = CudaStream.create(device)) {
                        Shape shape = new Shape(4, 2048);
                        NDArray start =
                                TestArrays.random(
                                        manager, ScalarType.BFLOAT16, shape, 50 + group.rank());
                        NDArray residual =
                                TestArrays.random(manager, ScalarType.BFLOAT16, shape, 49);
                        NDArray weight =
                                TestArrays.random(
                                        manager, ScalarType.BFLOAT16, new Shape(2048), 48);
                        device.synchronize();
                        CudaStreamGuard guard =
                                Torch.cudaStreamGuard(group.device(), stream.handle());
                        try {
                            double[] once = null;
                            for (int i = 0; i < 3; i++) {
                                once =
                                        TestArrays.values(
                                                layers(layers, start, residual, weight, group));
                            }
                            NDArray[] result = new NDArray[1];
                            try (CudaGraph graph =
                                    CudaGraph.capture(
                                            stream,
                                            () ->
                                                    result[0] =
                                                            layers(
                                                                    layers, start, residual, weight,
                                                                    group))) {
                                for (int i = 0; i < 50; i++) {
                                    graph.launch(stream);
                                    assertArrayEquals(once, TestArrays.values(result[0]));
                                }
                                stream.synchronize();
                            }
                        } finally {
                            guard.close();
                        }
                    }
                });
    }

    private static NDArray layers(
            int count, NDArray start, NDArray residual, NDArray weight, ProcessGroup group) {
        NormedResidual layer = FusedOps.allReduceRmsNorm(start, residual, weight, 1e-5f, group);
        for (int i = 1; i < count; i++) {
            layer = FusedOps.allReduceRmsNorm(layer.norm(), layer.residual(), weight, 1e-5f, group);
        }
        return layer.norm();
    }

    /** If calls are compared before anything is sent, a mismatch does not break the group. */
    @Test
    void callsThatDifferLeaveAVerifiedGroupUsable() {
        NormCase after = NormCase.grid().get(0);
        runWithManager(
                P2pRanks.verifiedOptions().optBufferSize(8 << 20).build(),
                (group, manager) -> {
                    NDArray weight = manager.ones(new Shape(64));
                    for (int i = 0; i < 5; i++) {
                        int rows = group.rank() == i % worldSize ? 3 : 2;
                        NDArray a = manager.ones(new Shape(rows, 64));
                        String message =
                                assertThrows(
                                                CollectiveMismatchException.class,
                                                () ->
                                                        FusedOps.allReduceRmsNorm(
                                                                a, a, weight, 0, group))
                                        .getMessage();
                        assertTrue(message.contains("(2, 64)"), message);
                        assertTrue(message.contains("(3, 64)"), message);
                        after.check(group, 1);
                    }
                });
    }

    /**
     * If calls are compared behind the operation, a mismatch breaks the group, with an all-reduce
     * too.
     */
    @Test
    void callsThatDifferBreakTheGroupOnAllRanks() {
        for (boolean other : new boolean[] {false, true}) {
            runWithManager(
                    options(),
                    (group, manager) -> {
                        boolean odd = group.rank() == worldSize - 1;
                        NDArray a = manager.ones(new Shape(odd ? 3 : 2, 64));
                        NDArray weight = manager.ones(new Shape(64));
                        // On a GPU that ranks share, no rank loads a kernel while others wait.
                        NDArray same = manager.ones(new Shape(1, 64));
                        FusedOps.allReduceRmsNorm(same, same, weight, 0, group);
                        String message =
                                assertThrows(
                                                CollectiveException.class,
                                                () -> differ(group, a, weight, odd && other))
                                        .getMessage();
                        assertTrue(message.contains("allReduceRmsNorm(float32, (2, 64)"), message);
                        assertTrue(message.contains("(3, 64)"), message);
                    });
        }
    }

    private static void differ(ProcessGroup group, NDArray a, NDArray weight, boolean reduces) {
        for (int i = 0; i < 1_000_000; i++) {
            if (reduces) {
                group.allReduce(a, ReduceOp.SUM).await();
            } else {
                NormedResidual result = FusedOps.allReduceRmsNorm(a, a, weight, 0, group);
                TestArrays.values(result.norm());
                result.residual().close();
                result.norm().close();
            }
        }
    }

    /** A kernel that waits for a missing rank ends at the timeout, which breaks the group. */
    @Test
    void aRankThatDoesNotCallIsNamed() {
        CountDownLatch failed = new CountDownLatch(1);
        runWithManager(
                options(),
                (group, manager) -> {
                    if (group.rank() > 0) {
                        Replays.await(failed);
                        return;
                    }
                    ProcessGroup hasty = group.withTimeout(Duration.ofSeconds(2));
                    try {
                        NDArray a = manager.ones(new Shape(2, 64));
                        NDArray weight = manager.ones(new Shape(64));
                        String message =
                                assertThrows(
                                                CollectiveException.class,
                                                () -> differ(hasty, a, weight, false))
                                        .getMessage();
                        assertTrue(message.contains("allReduceRmsNorm"), message);
                        assertTrue(message.contains("did not arrive"), message);
                    } finally {
                        failed.countDown();
                    }
                });
    }
}
