// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDManager;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Barriers of some ranks on {@code shm}. */
@Timeout(120)
class BarrierTest {

    private List<ProcessGroup> groups = List.of();

    private void start(int ranks) {
        ShmOptions options = ShmOptions.builder().optTimeout(Duration.ofSeconds(60)).build();
        groups = ProcessGroups.local("shm", ranks, options);
    }

    @AfterEach
    void destroy() {
        groups.forEach(ProcessGroup::destroy);
    }

    @ParameterizedTest
    @ValueSource(ints = {2, 3, 5})
    void exchanges(int ranks) {
        start(ranks);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        BarrierCases.exchanges(group, manager);
                    }
                    return null;
                });
    }

    @Test
    void othersNeedNotCall() {
        start(3);
        CountDownLatch ended = new CountDownLatch(2);
        ProcessGroups.run(
                groups,
                group -> {
                    BarrierCases.othersNeedNotCall(group, ended);
                    return null;
                });
    }

    @Test
    void differentRanksBreakTheGroup() {
        start(3);
        ProcessGroups.run(
                groups,
                group -> {
                    BarrierCases.differentRanks(group);
                    assertThrows(CollectiveException.class, () -> group.barrier().await());
                    return null;
                });
    }

    @Test
    void wrongRanksAreRefused() {
        start(2);
        ProcessGroups.run(
                groups,
                group -> {
                    Operation.Agreed nothing = new Operation.Agreed(null, new long[0], null, 0);
                    group.execute(
                                    new OpType("wrong"),
                                    nothing,
                                    operation -> {
                                        int self = group.rank();
                                        assertRefused(
                                                group,
                                                operation,
                                                "rank " + self + " is not among the ranks [",
                                                1 - self);
                                        assertRefused(
                                                group, operation, "is not among the ranks []");
                                        assertRefused(
                                                group,
                                                operation,
                                                "rank 2 is out of range",
                                                0,
                                                1,
                                                2);
                                        assertRefused(
                                                group,
                                                operation,
                                                "rank " + self + " is named twice",
                                                self,
                                                self);
                                    })
                            .await();
                    return null;
                });
    }

    private static void assertRefused(
            ProcessGroup group, Operation operation, String expected, int... ranks) {
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> buffers.intraNodeBarrier(operation, ranks))
                        .getMessage();
        assertEquals(true, message.contains(expected), message);
    }
}
