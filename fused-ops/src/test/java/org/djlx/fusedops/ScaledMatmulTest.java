// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.djlx.fusedops.FusedOpsErrorsTest.assertRejected;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.Slots;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The operators for float8 compared with float64, on the paths of the CPU. */
@Timeout(120)
class ScaledMatmulTest {

    private static List<ScaledCase> grid() {
        List<ScaledCase> cases = new ArrayList<>();
        int[][] sizes = {
            {1, 1, 1}, {1, 16, 16}, {3, 7, 5}, {5, 33, 17}, {16, 64, 32}, {23, 33, 17}, {0, 4, 3}
        };
        for (int[] size : sizes) {
            for (boolean byRow : new boolean[] {false, true}) {
                double sumError = (size[1] + 1) * 0x1p-23;
                cases.add(new ScaledCase(size[0], size[1], size[2], byRow, sumError, 0));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @CsvSource({
        "1,1048576,",
        "2,1048576,",
        "4,1048576,",
        "1,1048576,PIPELINED",
        "2,1048576,PIPELINED",
        "4,1048576,PIPELINED",
        "2,2048,PIPELINED", // in rounds
        "4,2048,PIPELINED",
        "2,1048576,NCCL",
        "4,1048576,NCCL"
    })
    void matchFloat64(int worldSize, long bufferSize, Path forced) {
        FusedOps.Scope scope = forced == null ? () -> {} : FusedOps.force(forced);
        try (scope;
                UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(
                    worldSize,
                    bufferSize,
                    group -> {
                        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                        assertEquals(bufferSize == 2048, new Slots(buffers, 23 * 33).hasRounds());
                        for (ScaledCase each : grid()) {
                            each.checkGather(group);
                            each.checkScatter(group, ReduceOp.SUM);
                            each.checkScatter(group, ReduceOp.AVG);
                        }
                    });
            long calls = (long) worldSize * grid().size() * 2;
            if (forced != null) {
                assertEquals(calls, usage.calls("allGatherScaledMatmul", forced));
                assertEquals(calls, usage.calls("scaledMatmulReduceScatter", forced));
            }
        }
    }

    @Test
    void wrongArgumentsAreRejectedBeforeAnythingIsSent() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch");
                            UsageCounter usage = FusedOps.countUsage()) {
                        reject(group, manager);
                        assertEquals(0, usage.calls());
                        group.barrier().await();
                    }
                });
    }

    private static void reject(ProcessGroup group, NDManager manager) {
        NDArray wide = manager.ones(new Shape(2, 3));
        NDArray a = Torch.cast(wide, ScalarType.FLOAT8_E4M3FN);
        NDArray rowMajor = Torch.cast(manager.ones(new Shape(3, 4)), ScalarType.FLOAT8_E4M3FN);
        NDArray b = Torch.cast(manager.ones(new Shape(4, 3)), ScalarType.FLOAT8_E4M3FN).transpose();
        NDArray one = manager.ones(new Shape(1));
        NDArray rows = manager.ones(new Shape(2, 1));
        NDArray columns = manager.ones(new Shape(1, 4));
        assertRejected(() -> gather(a, b, rows, one, 0, group), "B", "(1, 4)", "(1)");
        assertRejected(() -> gather(a, b, one, columns, 0, group), "B", "(1, 4)", "one value");
        assertRejected(
                () -> gather(a, b, columns, columns, 0, group), "aScale", "(1, 4)", "(2, 1)");
        assertRejected(() -> gather(a, b, rows, rows, 0, group), "B", "(2, 1)", "(1, 4)");
        assertRejected(() -> gather(a, rowMajor, one, one, 0, group), "B", "column-major");
        assertRejected(() -> gather(a, rowMajor, rows, columns, 0, group), "B", "column-major");
        assertRejected(() -> gather(a, b, one, one, 1, group), "gatherDim", "first");
        assertRejected(() -> gather(wide, b, one, one, 0, group), "FLOAT32", "FLOAT8_E4M3FN");
        assertRejected(() -> gather(a, wide, one, one, 0, group), "FLOAT32", "FLOAT8_E4M3FN");
        NDArray half = Torch.cast(one, ScalarType.FLOAT16);
        assertRejected(() -> gather(a, b, half, one, 0, group), "aScale", "FLOAT16");
        assertRejected(
                () ->
                        FusedOps.allGatherScaledMatmul(
                                a, List.of(b), one, List.of(), 0, group, false),
                "as many scales");
        NDArray gradient = manager.ones(new Shape(1));
        gradient.setRequiresGradient(true);
        assertRejected(() -> gather(a, b, gradient, one, 0, group), "gradient");
        assertRejected(() -> FusedOps.allGatherMatmul(a, List.of(b), 0, group), "FLOAT8_E4M3FN");
        assertRejected(() -> scatter(a, b, one, one, ReduceOp.MAX, 0, group), "SUM or AVG");
        assertRejected(() -> scatter(a, b, one, one, ReduceOp.SUM, 1, group), "scatterDim");
        NDArray odd = Torch.cast(manager.ones(new Shape(3, 3)), ScalarType.FLOAT8_E4M3FN);
        assertRejected(() -> scatter(odd, b, one, one, ReduceOp.SUM, 0, group), "not divisible");
        assertRejected(() -> scatter(a, b, one, null, ReduceOp.SUM, 0, group), "scale of B");
    }

    private static void gather(
            NDArray a, NDArray b, NDArray aScale, NDArray bScale, int dim, ProcessGroup group) {
        FusedOps.allGatherScaledMatmul(a, List.of(b), aScale, List.of(bScale), dim, group, false);
    }

    private static void scatter(
            NDArray a,
            NDArray b,
            NDArray aScale,
            NDArray bScale,
            ReduceOp op,
            int dim,
            ProcessGroup group) {
        FusedOps.scaledMatmulReduceScatter(a, b, aScale, bScale, op, dim, group);
    }
}
