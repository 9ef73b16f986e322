// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.cost.Path;

/** One rank of {@link FusedOpsGpuTest#inProcesses}. */
public final class FusedRankMain {

    private FusedRankMain() {}

    public static void main(String[] args) {
        List<LowContentionCase> gathers = LowContentionCase.grid(LowContentionTest.TYPES);
        List<LowContentionCase> scatters = LowContentionCase.grid(LowContentionTest.FLOATS);
        try (UsageCounter usage = FusedOps.countUsage();
                ProcessGroup group =
                        ProcessGroups.init("cuda_p2p", FusedOpsGpuTest.options(8 << 20))) {
            assertTrue(group.isP2pAvailable());
            FusedOpsTest.gatherGrid().forEach(one -> one.checkAllGatherMatmul(group, 2));
            FusedOpsTest.scatterGrid(group.worldSize())
                    .forEach(one -> one.checkMatmulReduceScatter(group, ReduceOp.SUM, 2));
            gathers.forEach(one -> LowContentionTest.allGather(group, one));
            scatters.forEach(one -> LowContentionTest.reduceScatter(group, one, ReduceOp.AVG));
            assertEquals(usage.fallbacks(FallbackReason.NCCL_IS_FASTER), usage.calls(Path.NCCL));
        }
    }
}
