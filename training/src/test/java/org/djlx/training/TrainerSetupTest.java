// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.training.loss.Loss;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;

class TrainerSetupTest {

    /** Small limits of all-reduces would make the slots of all-gathers small, too. */
    @Test
    void onlyReplicatedGradientsLimitAllReducesByKernels() {
        CudaP2pOptions usual = CudaP2pOptions.builder().build();
        CudaP2pOptions divided = options(ShardingStrategy.FULL_SHARD);
        assertEquals(usual.oneShotBytes(2), divided.oneShotBytes(2));
        assertEquals(usual.twoShotBytes(2, false), divided.twoShotBytes(2, false));
        CudaP2pOptions replicated = options(ShardingStrategy.NO_SHARD);
        assertTrue(replicated.oneShotBytes(2) < usual.oneShotBytes(2));
        assertTrue(replicated.twoShotBytes(2, false) < usual.twoShotBytes(2, false));
    }

    private static CudaP2pOptions options(ShardingStrategy strategy) {
        DataParallelConfig config =
                new DataParallelConfig(Loss.l2Loss()).optShardingStrategy(strategy);
        Device[] devices = {Device.gpu(0), Device.gpu(1)};
        return assertInstanceOf(
                CudaP2pOptions.class, TrainerSetup.options(config, "cuda_p2p", devices));
    }
}
