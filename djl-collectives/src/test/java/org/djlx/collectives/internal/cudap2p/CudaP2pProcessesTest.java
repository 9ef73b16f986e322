// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.internal.nccl.NcclContractMain;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Backend {@code cuda_p2p} on all GPUs of the machine, with ranks that are processes. */
@Tag("gpu")
@Timeout(300)
class CudaP2pProcessesTest {

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    @Test
    void allReduceHasTheBitsOfRankOrder() throws InterruptedException {
        run(CudaP2pRankMain.class);
    }

    /** A rank that exits ends its waits; the other ranks must fail. */
    @Test
    void tellsWhenItExitsWithinOperations() throws InterruptedException {
        run(CudaP2pRankMain.class, "exit");
    }

    @Test
    void ranksInProcessesFulfilTheContract() throws InterruptedException {
        P2pRanks.requireNccl();
        run(NcclContractMain.class, "cuda_p2p", "lazy");
    }

    /** All ranks of another job are refused while this process has a group on the GPUs. */
    @Test
    void anotherJobOnTheSameGpus() throws InterruptedException {
        List<ProcessGroup> groups =
                ProcessGroups.local("cuda_p2p", worldSize, P2pRanks.options().build());
        try (RankProcesses ranks =
                new RankProcesses(
                        worldSize, rank -> P2pRanks.environment(), CudaP2pRankMain.class)) {
            List<Integer> codes = ranks.await();
            for (int rank = 0; rank < worldSize; rank++) {
                String output = ranks.output(rank);
                assertNotEquals(0, codes.get(rank), output);
                assertTrue(output.contains("used by a P2P group of another job"), output);
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        run(CudaP2pRankMain.class);
    }

    private void run(Class<?> main, String... arguments) throws InterruptedException {
        try (RankProcesses ranks =
                new RankProcesses(worldSize, rank -> P2pRanks.environment(), main, arguments)) {
            ranks.awaitSuccess();
            for (int rank = 0; rank < worldSize; rank++) {
                String output = ranks.output(rank);
                assertTrue(output.contains("passed "), output);
            }
        }
    }
}
