// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.fusedops.cost.Path;

/** One rank of {@link AllReduceRmsNormGpuTest#inProcesses}. */
public final class NormRankMain {

    private NormRankMain() {}

    public static void main(String[] args) {
        List<NormCase> small = AllReduceRmsNormGpuTest.small();
        try (UsageCounter usage = FusedOps.countUsage();
                ProcessGroup group =
                        ProcessGroups.init("cuda_p2p", AllReduceRmsNormGpuTest.options())) {
            small.forEach(one -> one.check(group, 3));
            assertEquals(3L * small.size(), usage.calls(Path.FUSED));
        }
    }
}
