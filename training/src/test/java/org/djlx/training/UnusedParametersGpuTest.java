// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import java.util.List;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("gpu")
@Timeout(120)
class UnusedParametersGpuTest {

    private static void check(List<ProcessGroup> groups, ShardingStrategy... strategies) {
        float[][] expected = UnusedParametersTest.expected(Device.gpu(0), groups.size());
        try {
            for (ShardingStrategy sharding : strategies) {
                ProcessGroups.run(
                        groups,
                        group -> {
                            P2pRanks.run(
                                    group,
                                    () -> UnusedParametersTest.check(group, sharding, expected));
                            return null;
                        });
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void ranksOfCudaP2pUseDifferentLayers() {
        P2pRanks.require(2);
        // FULL_SHARD needs optCopyEngines where ranks share a GPU: FullyShardGpuTest.
        check(
                ProcessGroups.local("cuda_p2p", 2, P2pRanks.options().build()),
                ShardingStrategy.NO_SHARD);
    }

    @Test
    void ranksOfNcclUseDifferentLayers() {
        GpuTests.require(2, NativeLibrary.NCCL);
        check(ProcessGroups.local("nccl", 2, BackendOptions.DEFAULTS), ShardingStrategy.values());
    }
}
