// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.internal.cudap2p.Replays;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The operators for float8 compared with float64, on GPUs. */
@Tag("gpu")
@Timeout(120)
class ScaledMatmulGpuTest {

    // Hopper's float8 instructions keep 13 bits of a product below the largest product of a sum.
    private static final double ALIGNED = 0x1p-13;

    /** Cases that FUSED computes; their K may be padded only for a reduce-scatter. */
    private static List<ScaledCase> fusable() {
        return List.of(
                new ScaledCase(128, 256, 64, false, 0, ALIGNED),
                new ScaledCase(128, 256, 64, true, 0, ALIGNED),
                new ScaledCase(16, 2048, 32, false, 0, ALIGNED),
                new ScaledCase(16, 2048, 32, true, 0, ALIGNED),
                new ScaledCase(1, 16, 8, true, 0, ALIGNED),
                new ScaledCase(33, 1040, 40, true, 0, ALIGNED),
                new ScaledCase(200, 144, 264, false, 0, ALIGNED),
                new ScaledCase(200, 144, 264, true, 0, ALIGNED),
                new ScaledCase(5, 33, 16, true, 0, ALIGNED));
    }

    private static List<ScaledCase> grid() {
        return List.of(
                new ScaledCase(128, 256, 64, false, 0, ALIGNED),
                new ScaledCase(128, 256, 64, true, 0, ALIGNED),
                new ScaledCase(16, 2048, 32, false, 0, ALIGNED),
                new ScaledCase(16, 2048, 32, true, 0, ALIGNED),
                // Scales of a rank's rows begin at multiples of 20 bytes.
                new ScaledCase(5, 320, 320, true, 0, ALIGNED),
                // Not multiples of 16: the operands are converted to float32.
                new ScaledCase(5, 33, 17, false, 34 * 0x1p-23, 0),
                new ScaledCase(5, 33, 17, true, 34 * 0x1p-23, 0));
    }

    @ParameterizedTest
    @CsvSource({"FUSED,2", "FUSED,4", "PIPELINED,2", "PIPELINED,4", "GATHERED,2", "GATHERED,4"})
    @SuppressWarnings("try") // the scope is not named in the body
    void matchFloat64(Path path, int worldSize) {
        P2pRanks.require(worldSize);
        boolean fused = path == Path.FUSED;
        assumeTrue(!fused || FusedOpsGpuTest.isHopper(), "the GPU is not a Hopper");
        List<ScaledCase> scatters = fused ? fusable() : grid();
        List<ScaledCase> gathers =
                scatters.stream().filter(each -> !fused || each.inner() % 16 == 0).toList();
        try (FusedOps.Scope scope = FusedOps.force(path);
                UsageCounter usage = FusedOps.countUsage()) {
            run(
                    worldSize,
                    group -> {
                        for (ScaledCase each : scatters) {
                            if (gathers.contains(each)) {
                                each.checkGather(group);
                            }
                            each.checkScatter(group, ReduceOp.SUM);
                            each.checkScatter(group, ReduceOp.AVG);
                        }
                    });
            if (path != Path.GATHERED) {
                long calls = 2L * worldSize;
                assertEquals(calls * gathers.size(), usage.calls("allGatherScaledMatmul", path));
                assertEquals(
                        calls * scatters.size(), usage.calls("scaledMatmulReduceScatter", path));
            }
        }
    }

    /**
     * Sums of 16384 equal products, which tensor cores alone compute 6 % too small: they keep 13
     * bits below the leading bit of the sum.
     */
    @ParameterizedTest
    @CsvSource({"FUSED", "PIPELINED", "GATHERED"})
    @SuppressWarnings("try") // the scope is not named in the body
    void longSums(Path path) {
        int worldSize = P2pRanks.require();
        assumeTrue(path != Path.FUSED || FusedOpsGpuTest.isHopper(), "the GPU is not a Hopper");
        try (FusedOps.Scope scope = FusedOps.force(path)) {
            run(worldSize, ScaledMatmulGpuTest::checkLongSums);
        }
    }

    private static void checkLongSums(ProcessGroup group) {
        int k = 16384;
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray a = all(manager, 1.125f, 16, k);
            NDArray b = all(manager, 1.25f, 64, k).transpose();
            NDArray one = manager.ones(new Shape(1));
            NDArray product =
                    FusedOps.allGatherScaledMatmul(
                                    a, List.of(b), one, List.of(one), 0, group, false)
                            .outputs()
                            .get(0);
            for (double value : TestArrays.values(product)) {
                assertEquals(1.125f * 1.25f * k, value);
            }
        }
    }

    /** Several tiles of rows and of columns, with a partial tile at the end of both. */
    @ParameterizedTest
    @CsvSource({"FUSED", "PIPELINED", "GATHERED"})
    @SuppressWarnings("try") // the scope is not named in the body
    void graphs(Path path) {
        int worldSize = P2pRanks.require();
        assumeTrue(path != Path.FUSED || FusedOpsGpuTest.isHopper(), "the GPU is not a Hopper");
        try (FusedOps.Scope scope = FusedOps.force(path);
                UsageCounter usage = FusedOps.countUsage()) {
            run(worldSize, ScaledMatmulGpuTest::replay);
            usage.choices().keySet().forEach(each -> assertEquals(path, each.path()));
        }
    }

    private static void replay(ProcessGroup group) {
        int k = 192; // so that products are exact in bfloat16
        int rows = 301; // the scales of the second rank are not aligned, and are copied
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray a = all(manager, 1, rows, k);
            NDArray all = all(manager, 1, (long) rows * group.worldSize(), k);
            NDArray b = all(manager, 1, 264, k).transpose();
            NDArray ofB = manager.full(new Shape(1, 264), 0.5f);
            // The input has the scales of A's rows.
            Replays.check(
                    group,
                    ScalarType.BFLOAT16,
                    new Shape(rows, 1),
                    input -> {
                        try (NDArray ofA = Torch.cast(input, ScalarType.FLOAT32);
                                NDArray product =
                                        FusedOps.allGatherScaledMatmul(
                                                        a,
                                                        List.of(b),
                                                        ofA,
                                                        List.of(ofB),
                                                        0,
                                                        group,
                                                        false)
                                                .outputs()
                                                .get(0)) {
                            return product.get(":" + rows);
                        }
                    },
                    (value, ranks) -> 0.5 * k * value);
            Replays.check(
                    group,
                    ScalarType.BFLOAT16,
                    new Shape((long) rows * group.worldSize(), 1),
                    input -> {
                        try (NDArray ofA = Torch.cast(input, ScalarType.FLOAT32)) {
                            return FusedOps.scaledMatmulReduceScatter(
                                    all, b, ofA, ofB, ReduceOp.SUM, 0, group);
                        }
                    },
                    (value, ranks) -> 0.5 * k * (ranks * value + ranks * (ranks - 1) / 2.0));
        }
    }

    private static NDArray all(NDManager manager, float value, long rows, long columns) {
        NDArray wide = manager.full(new Shape(rows, columns), value);
        return Torch.cast(wide, ScalarType.FLOAT8_E4M3FN);
    }

    private static void run(int worldSize, Consumer<ProcessGroup> body) {
        LocalRanks.run(
                ProcessGroups.local("cuda_p2p", worldSize, FusedOpsGpuTest.options(8 << 20)),
                group -> P2pRanks.run(group, () -> body.accept(group)));
    }
}
