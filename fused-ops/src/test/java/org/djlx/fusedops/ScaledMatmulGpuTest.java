// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.cost.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The operators for float8 compared with float64, on GPUs. */
@Tag("gpu")
@Timeout(120)
class ScaledMatmulGpuTest {

    // Hopper's float8 instructions keep 13 bits of a product below the largest product of a sum.
    private static final double ALIGNED = 0x1p-13;

    private static List<ScaledCase> grid() {
        return List.of(
                new ScaledCase(128, 256, 64, false, 0, ALIGNED),
                new ScaledCase(128, 256, 64, true, 0, ALIGNED),
                new ScaledCase(16, 2048, 32, false, 0, ALIGNED),
                new ScaledCase(16, 2048, 32, true, 0, ALIGNED),
                // Not multiples of 16: the operands are converted to float32.
                new ScaledCase(5, 33, 17, false, 34 * 0x1p-23, 0),
                new ScaledCase(5, 33, 17, true, 34 * 0x1p-23, 0));
    }

    @ParameterizedTest
    @EnumSource(
            value = Path.class,
            names = {"PIPELINED", "GATHERED"})
    @SuppressWarnings("try") // the scope is not named in the body
    void matchFloat64(Path path) {
        int worldSize = P2pRanks.require();
        try (FusedOps.Scope scope = FusedOps.force(path);
                UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(
                    ProcessGroups.local("cuda_p2p", worldSize, FusedOpsGpuTest.options(8 << 20)),
                    group ->
                            P2pRanks.run(
                                    group,
                                    () -> {
                                        for (ScaledCase each : grid()) {
                                            each.checkGather(group);
                                            each.checkScatter(group, ReduceOp.SUM);
                                            each.checkScatter(group, ReduceOp.AVG);
                                        }
                                    }));
            if (path == Path.PIPELINED) {
                long calls = 2L * worldSize * grid().size();
                assertEquals(calls, usage.calls("allGatherScaledMatmul", path));
                assertEquals(calls, usage.calls("scaledMatmulReduceScatter", path));
            }
        }
    }
}
