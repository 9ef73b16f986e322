// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDManager;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.p2p.BarrierCases;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Barriers of some ranks on {@code cuda_p2p}. */
@Timeout(120)
class CudaP2pBarrierTest {

    private interface Body {
        void run(ProcessGroup group, NDManager manager) throws InterruptedException;
    }

    private static void run(int ranks, Body body) {
        P2pRanks.require(ranks);
        List<ProcessGroup> groups =
                ProcessGroups.local(
                        "cuda_p2p", ranks, P2pRanks.options().optBufferSize(1 << 16).build());
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        P2pRanks.run(
                                group,
                                () -> {
                                    try (NDManager manager =
                                            NDManager.newBaseManager(group.device(), "PyTorch")) {
                                        body.run(group, manager);
                                    } catch (InterruptedException e) {
                                        throw new IllegalStateException(e);
                                    }
                                });
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {3, 4})
    @Tag("gpu")
    void exchanges(int ranks) {
        run(ranks, BarrierCases::exchanges);
    }

    @Test
    @Tag("gpu")
    void othersNeedNotCall() {
        CountDownLatch ended = new CountDownLatch(2);
        run(3, (group, manager) -> BarrierCases.othersNeedNotCall(group, ended));
    }

    @ParameterizedTest
    @ValueSource(ints = {3, 4})
    @Tag("gpu")
    void differentRanksBreakTheGroup(int ranks) {
        run(ranks, (group, manager) -> BarrierCases.differentRanks(group));
    }

    /** The word in which a kernel reports why its wait failed. */
    @Test
    void reports() {
        assertEquals(Optional.empty(), WaitStatus.error(0));
        assertEquals(Optional.of("rank 2 did not arrive"), WaitStatus.error(3));
        assertEquals(
                Optional.of(
                        "rank 1 called the barrier of ranks [0, 1, 7], this rank one of other"
                                + " ranks; name the same ranks on each of them"),
                WaitStatus.error(2 | 0b10000011 << 8));
    }
}
