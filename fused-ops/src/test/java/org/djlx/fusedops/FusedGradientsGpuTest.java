// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;

/** The tests of {@link FusedGradientsTest} on GPUs, one for each rank. */
@Tag("gpu")
@Timeout(300)
class FusedGradientsGpuTest extends FusedGradientsTest {

    private static final ThreadLocal<Device> DEVICE = ThreadLocal.withInitial(() -> Device.gpu(0));

    @BeforeEach
    void requireGpus() {
        P2pRanks.require();
        P2pRanks.requireNccl();
    }

    @Override
    void run(int worldSize, Consumer<ProcessGroup> body) {
        Assumptions.assumeTrue(
                CudaDevice.count() >= worldSize,
                () -> "needs " + worldSize + " GPUs, has " + CudaDevice.count());
        LocalRanks.run(
                ProcessGroups.local("cuda_p2p", worldSize, FusedOpsGpuTest.options(8 << 20)),
                group -> {
                    DEVICE.set(group.device());
                    try {
                        body.accept(group);
                    } finally {
                        DEVICE.remove();
                    }
                });
    }

    /** cuBLASLt adds without rounding to 16 bits; libtorch's matmuls would round. */
    @Override
    double convertedTolerance() {
        return 0;
    }

    @Override
    NDManager newManager() {
        return NDManager.newBaseManager(DEVICE.get(), "PyTorch");
    }
}
