// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.nccl.NcclCases;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;

/**
 * The all-reduces of the contract, by the algorithms other than one-shot, which {@link
 * CudaP2pThreadsTest} uses for small tensors.
 */
@Tag("gpu")
@Timeout(100)
class CudaP2pAlgorithmsTest {

    /** Other cases that reduce. */
    private static final List<String> OTHERS =
            List.of("severalUnderWay", "oneAfterTheOther", "work", "declaredReductions");

    @TestFactory
    Stream<DynamicTest> twoShot() {
        return contract(P2pRanks.options().optOneShotBytes(0));
    }

    @TestFactory
    Stream<DynamicTest> direct() {
        return contract(P2pRanks.directOptions());
    }

    private static Stream<DynamicTest> contract(CudaP2pOptions.Builder options) {
        int worldSize = P2pRanks.require();
        P2pRanks.requireNccl(); // NCCL runs some reductions and types.
        Map<String, ContractCases.Case> cases = NcclCases.cases(worldSize);
        cases.keySet().removeIf(name -> !name.startsWith("allReduce") && !OTHERS.contains(name));
        CudaP2pOptions built = options.optBufferSize(1 << 20).build();
        return ContractCases.tests(
                cases, () -> ProcessGroups.local("cuda_p2p", worldSize, built), P2pRanks::run);
    }
}
