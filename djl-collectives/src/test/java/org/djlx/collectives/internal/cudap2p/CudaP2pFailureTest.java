// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.spi.BackendOptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A rank's process is killed or leaves; the other ranks fail in time, and can go on without it. */
@Tag("gpu")
@Timeout(200)
class CudaP2pFailureTest {

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    @ParameterizedTest
    @ValueSource(strings = {"during", "between"})
    void aRankDiesDuringOrBetweenCalls(String when) throws InterruptedException {
        Survivors.check(worldSize, 4, 1, CudaP2pVictimMain.class, when);
    }

    /** The others create a new communicator, and new P2P memory. NCCL has one rank on a GPU. */
    @ParameterizedTest
    @ValueSource(strings = {"cuda_p2p", "nccl"})
    void othersGoOnWithoutARank(String backend) {
        P2pRanks.require(3);
        BackendOptions options = P2pRanks.options().build();
        if (backend.equals("nccl")) {
            P2pRanks.requireNccl();
            options = P2pRanks.options().build().ncclOptions();
        }
        List<ProcessGroup> groups = ProcessGroups.local(backend, 3, options);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        P2pRanks.run(group, () -> shrink(group));
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void shrink(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            assertEquals(6, sum(group, manager));
            if (group.rank() == 2) {
                group.destroy();
                return;
            }
            assertThrows(
                    CollectiveException.class,
                    () -> {
                        while (true) {
                            sum(group, manager);
                        }
                    });
            try (ProcessGroup rest = group.shrink(List.of(2))) {
                assertEquals(3, sum(rest, manager));
                assertEquals(group.isP2pAvailable(), rest.isP2pAvailable());
            }
        }
    }

    private static double sum(ProcessGroup group, NDManager manager) {
        try (NDArray tensor = manager.full(new Shape(1000), group.rank() + 1f)) {
            group.allReduce(tensor, ReduceOp.SUM).await();
            return TestArrays.values(tensor)[999];
        }
    }
}
