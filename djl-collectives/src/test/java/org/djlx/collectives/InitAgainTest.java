// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.djlx.collectives.internal.group.GroupStore;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.TcpStore;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Groups from the environment that follow each other, whichever rank is ahead of the others. */
@Timeout(120)
class InitAgainTest {

    private static final int RANKS = 3;
    private static final int CYCLES = 4;
    private static final BackendOptions OPTIONS = new BackendOptions(Duration.ofSeconds(60));

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private int port;

    @BeforeEach
    void findPort() throws Exception {
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
    }

    @AfterEach
    void stop() {
        threads.shutdownNow();
    }

    private ProcessGroup init(int rank, int cycle) {
        Map<String, String> environment =
                Map.of(
                        "RANK", "" + rank,
                        "WORLD_SIZE", "" + RANKS,
                        "MASTER_ADDR", "127.0.0.1",
                        "MASTER_PORT", "" + port);
        return ProcessGroups.init("shm", OPTIONS, environment, cycle);
    }

    /** Creates a group again and again on all ranks, uses it, and lets each rank end it. */
    private void cycles(Ending ending) throws Exception {
        List<CountDownLatch> first = new ArrayList<>();
        for (int cycle = 0; cycle < CYCLES; cycle++) {
            first.add(new CountDownLatch(1));
        }
        List<Future<?>> ranks = new ArrayList<>();
        for (int i = 0; i < RANKS; i++) {
            int rank = i;
            Callable<Void> body =
                    () -> {
                        for (int cycle = 0; cycle < CYCLES; cycle++) {
                            ProcessGroup group = init(rank, cycle);
                            use(group);
                            ending.end(group, first.get(cycle));
                        }
                        return null;
                    };
            ranks.add(threads.submit(body));
        }
        for (Future<?> rank : ranks) {
            rank.get();
        }
    }

    private static void use(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            NDArray tensor = manager.ones(new Shape(3));
            group.allReduce(tensor, ReduceOp.SUM).await();
            assertEquals(RANKS, tensor.getFloat(0));
        }
    }

    /** How a rank ends a group; the rank that is to be first counts the latch down. */
    private interface Ending {
        void end(ProcessGroup group, CountDownLatch first) throws Exception;
    }

    // The pauses are to get a rank into trouble, if there is any; without them the tests pass, too.

    @Test
    void rankSkipsThePreviousGroupsServer() throws Exception {
        cycles(
                (group, first) -> {
                    if (group.rank() == 0) {
                        first.await();
                        Thread.sleep(100);
                    }
                    group.destroy();
                    first.countDown();
                });
    }

    @Test
    void slowRankUsesTheStoreWhileRankZeroLeaves() throws Exception {
        cycles(
                (group, first) -> {
                    if (group.rank() == 0) {
                        first.countDown();
                    } else {
                        first.await();
                        Thread.sleep(100);
                        GroupStore.of(group).add("k", 1);
                    }
                    group.destroy();
                });
    }

    @Test
    void secondRankZeroFailsBecauseThePortIsInUse() throws Exception {
        try (TcpStore first =
                TcpStore.builder().setHost("127.0.0.1").setPort(port).optServer(true).build()) {
            String second = assertThrows(CollectiveException.class, () -> init(0, 0)).getMessage();
            assertTrue(second.contains("127.0.0.1:" + port), second);
            assertTrue(second.contains("another process listens there already"), second);
            assertTrue(second.contains("give each process a RANK of its own"), second);
            assertEquals(port, first.port());
        }
    }
}
