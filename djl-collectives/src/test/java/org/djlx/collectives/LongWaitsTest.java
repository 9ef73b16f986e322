// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.FutureTask;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.HashStore;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Warnings for long waits; the late rank arrives after the warning. */
@Timeout(60)
class LongWaitsTest {

    private static final ShmOptions OPTIONS =
            ShmOptions.builder().optWarnAfter(Duration.ofMillis(1)).build();

    private interface RankBody {

        void run(ProcessGroup group, NDArray tensor, TestLog log) throws Exception;
    }

    /** Runs ranks; rank 0 waits in the first operation, for which the log must warn once. */
    private static void runAndExpectOne(int ranks, RankBody body) {
        List<ProcessGroup> groups = ProcessGroups.local("shm", ranks, OPTIONS);
        try (TestLog log = new TestLog(LongWaits.class)) {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager(group.device())) {
                            body.run(group, manager.ones(new Shape(2)), log);
                            return null;
                        }
                    });
            String name = groups.get(0).name();
            assertEquals(1, log.count("#1 of group '" + name + "' on rank 0"));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void longOperationIsLoggedOnce() {
        runAndExpectOne(
                3,
                (group, tensor, log) -> {
                    if (group.rank() != 0) {
                        String message = log.await("on rank 0");
                        String call = "allReduce(float32, (2), SUM) #1 of group '%s' on rank 0";
                        assertTrue(message.startsWith(call.formatted(group.name())), message);
                        assertTrue(
                                message.contains(": still waiting for ranks 1, 2 after"), message);
                        assertTrue(message.endsWith("times out after 30 min"), message);
                    }
                    group.allReduce(tensor, ReduceOp.SUM).await();
                });
    }

    @Test
    void longMessageIsLogged() {
        runAndExpectOne(
                2,
                (group, tensor, log) -> {
                    if (group.rank() == 0) {
                        group.recv(tensor, 1, 5).await();
                    } else {
                        String message = log.await("on rank 0");
                        assertTrue(message.contains("recv(float32, (2), rank 1, tag 5)"), message);
                        assertTrue(message.contains("still waiting for rank 1"), message);
                        group.send(tensor, 0, 5).await();
                    }
                });
    }

    @Test
    void longGroupCreationIsLogged() throws Exception {
        try (TestLog log = new TestLog(LongWaits.class);
                HashStore store = new HashStore()) {
            FutureTask<ProcessGroup> first =
                    new FutureTask<>(
                            () -> ProcessGroups.init("shm", store, "waits", 0, 2, OPTIONS));
            new Thread(first).start();
            String message = log.await("creating group 'waits' on rank 0");
            assertTrue(message.contains("still waiting for rank 1 after"), message);
            ProcessGroups.init("shm", store, "waits", 1, 2, OPTIONS).destroy();
            first.get().destroy();
        }
    }

    /** By default a minute; a time beyond the timeout is never. */
    @Test
    void warnAfterSetsWhenALongWaitIsLogged() {
        assertEquals(Duration.ofMinutes(1), ShmOptions.builder().build().warnAfter());
        assertEquals(Duration.ofMinutes(1), new BackendOptions(Duration.ofDays(1)).warnAfter());
        for (Duration wrong : new Duration[] {Duration.ZERO, Duration.ofSeconds(-1), null}) {
            assertThrows(
                    IllegalArgumentException.class,
                    () -> new BackendOptions(Duration.ofSeconds(1), wrong));
        }
        ShmOptions never =
                ShmOptions.builder()
                        .optTimeout(Duration.ofMillis(200))
                        .optWarnAfter(Duration.ofDays(1))
                        .build();
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, never);
        try (TestLog log = new TestLog(LongWaits.class)) {
            assertThrows(CollectiveTimeoutException.class, () -> groups.get(0).barrier().await());
            assertEquals(0, log.count(groups.get(0).name()));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
