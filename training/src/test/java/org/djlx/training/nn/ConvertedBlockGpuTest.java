// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;

/** The tests of {@link ConvertedBlockTest} on GPUs, one for each rank. */
@Tag("gpu")
@Timeout(300)
class ConvertedBlockGpuTest extends ConvertedBlockTest {

    @Override
    List<ProcessGroup> groups(int ranks) {
        GpuTests.require(ranks, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        BackendOptions options = new BackendOptions(Duration.ofSeconds(60));
        return ProcessGroups.local("cuda_p2p", ranks, options);
    }
}
