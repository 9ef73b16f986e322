// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.collectives.store.HashStore;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** Ranks as threads: the failure of one rank ends the others and reaches the caller. */
@Timeout(60)
class RunTest {

    private static final Duration GRACE = Duration.ofMillis(50);

    private final List<ProcessGroup> groups = new ArrayList<>(ProcessGroups.local(3));

    @AfterEach
    void destroy() {
        groups.forEach(ProcessGroup::destroy);
    }

    @Test
    void rankBlockedOutsideAnOperationIsInterrupted() {
        CountDownLatch never = new CountDownLatch(1);
        IllegalStateException boom = new IllegalStateException("boom");
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                ProcessGroups.run(
                                        groups,
                                        group -> {
                                            if (group.rank() == 1) {
                                                throw boom;
                                            }
                                            never.await();
                                            return null;
                                        },
                                        GRACE));
        assertTrue(e.getMessage().startsWith("rank 1 failed: "), e.getMessage());
        assertTrue(e.getMessage().contains("boom"), e.getMessage());
        assertSame(boom, e.getCause());
        assertEquals(2, e.getSuppressed().length);
        for (Throwable other : e.getSuppressed()) {
            assertInstanceOf(InterruptedException.class, other.getCause());
        }
    }

    @Test
    void failureWithoutTextNamesRankAndClass() {
        for (RuntimeException failure : List.of(new Unprintable(), new Blocking())) {
            List<ProcessGroup> ranks = ProcessGroups.local(2);
            try {
                CollectiveException e =
                        assertThrows(
                                CollectiveException.class,
                                () ->
                                        ProcessGroups.run(
                                                ranks,
                                                group -> {
                                                    if (group.rank() == 1) {
                                                        throw failure;
                                                    }
                                                    group.barrier().await();
                                                    return null;
                                                }));
                assertEquals("rank 1 failed: " + failure.getClass().getName(), e.getMessage());
                assertSame(failure, e.getCause());
            } finally {
                ranks.forEach(ProcessGroup::destroy);
            }
        }
    }

    private static final class Unprintable extends RuntimeException {

        private static final long serialVersionUID = 1L;

        @Override
        public String toString() {
            throw new IllegalStateException("a test's");
        }
    }

    private static final class Blocking extends RuntimeException {

        private static final long serialVersionUID = 1L;

        @Override
        public String toString() {
            while (true) {
                LockSupport.park(); // Not even an interrupt ends it.
            }
        }
    }

    @Test
    void failureEndsOtherRanksOperationsAtOnce() {
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                ProcessGroups.run(
                                        groups,
                                        group -> {
                                            if (group.rank() == 2) {
                                                throw new AssertionError("an error");
                                            }
                                            group.barrier().await();
                                            return null;
                                        },
                                        Duration.ofMinutes(10)));
        assertTrue(e.getMessage().startsWith("rank 2 failed: "), e.getMessage());
        assertInstanceOf(AssertionError.class, e.getCause());
        for (Throwable other : e.getSuppressed()) {
            assertTrue(other.getMessage().contains("rank 2"), other.getMessage());
        }
    }

    @Test
    void timeoutKeepsItsExceptionType() {
        CollectiveTimeoutException e =
                assertThrows(
                        CollectiveTimeoutException.class,
                        () ->
                                ProcessGroups.run(
                                        groups,
                                        group -> {
                                            if (group.rank() == 0) {
                                                group.withTimeout(GRACE).barrier().await();
                                            }
                                            new CountDownLatch(1).await();
                                            return null;
                                        },
                                        GRACE));
        assertEquals(List.of(1, 2), e.missingRanks());
        assertTrue(e.getMessage().startsWith("rank 0 failed: "), e.getMessage());
    }

    @Test
    void nullArgumentsAreNamed() {
        ProcessGroups.RankBody<Object> body = group -> null;
        assertNamed("groups", () -> ProcessGroups.run(null, body));
        assertNamed("groups", () -> ProcessGroups.run(List.of(), body));
        assertNamed("groups", () -> ProcessGroups.run(Arrays.asList(groups.get(0), null), body));
        assertNamed("body", () -> ProcessGroups.run(groups, null));
        assertNamed("options", () -> ProcessGroups.local("shm", 1, null));
        assertNamed("backend", () -> ProcessGroups.local(null, 1, groupOptions()));
        assertNamed("register", () -> Backends.register(null, null));
        assertNamed("timeout", () -> new BackendOptions(null));
        HashStore store = new HashStore();
        assertNamed("name", () -> ProcessGroups.init("shm", store, null, 0, 1, groupOptions()));
        assertNamed("store", () -> ProcessGroups.init("shm", null, "g", 0, 1, groupOptions()));
        assertNamed("options", () -> ProcessGroups.init("shm", store, "g", 0, 1, null));
        ProcessGroup group = groups.get(0);
        assertNamed("timeout", () -> group.withTimeout(null));
        assertNamed("tensors", () -> group.allReduceCoalesced(null, ReduceOp.SUM));
        assertNamed("tensors", () -> group.allReduceCoalesced(nulls(), ReduceOp.SUM));
        assertNamed("outputs", () -> group.allGatherCoalesced(null, List.of()));
        assertNamed("input", () -> group.allGather(null, null));
        assertNamed("ops", () -> group.batchIsendIrecv(null));
        assertNamed("ops", () -> group.batchIsendIrecv(nulls()));
        assertNamed("ranks", () -> group.newGroup(null));
        Agreed nothing = new Agreed(null, new long[0], null, 0);
        assertNamed("body", () -> group.execute(new OpType("own"), nothing, null));
        assertNamed("type", () -> group.execute(null, nothing, operation -> {}));
    }

    /** As in c10d. */
    @Test
    void emptyListsAreRefused() {
        ProcessGroup group = groups.get(0);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            List<NDArray> none = List.of();
            List<NDArray> one = List.of(manager.create(1f));
            ReduceOp sum = ReduceOp.SUM;
            assertNamed("tensors is empty", () -> group.allReduceCoalesced(none, sum));
            assertNamed("outputs is empty", () -> group.allGatherCoalesced(none, none));
            assertNamed("inputs is empty", () -> group.allGatherCoalesced(one, none));
            assertNamed("inputs is null", () -> group.allGatherCoalesced(one, null));
            assertNamed("outputs is empty", () -> group.reduceScatterCoalesced(none, none, sum));
            assertNamed("inputs is empty", () -> group.reduceScatterCoalesced(one, none, sum));
            assertNamed("inputs is null", () -> group.reduceScatterCoalesced(one, null, sum));
            assertNamed("ops is empty", () -> group.batchIsendIrecv(List.of()));
            assertNamed("ranks is empty", () -> group.newGroup(List.of()));
            assertNamed("ranksToExclude is empty", () -> group.shrink(List.of()));
            NDArray tensor = one.get(0);
            assertNamed("outputs must have one", () -> group.allGather(none, tensor));
            assertNamed("inputs must have one", () -> group.reduceScatter(tensor, none, sum));
            assertNamed("outputs must have one", () -> group.allToAll(none, none));
            assertNamed("outputs must have one", () -> group.gather(none, tensor, 0));
            assertNamed("inputs must have one", () -> group.scatter(tensor, none, 0));
        }
    }

    private static BackendOptions groupOptions() {
        return new BackendOptions(Duration.ofSeconds(60));
    }

    private static <T> List<T> nulls() {
        return Arrays.asList((T) null);
    }

    private static void assertNamed(String what, Executable call) {
        String message = assertThrows(IllegalArgumentException.class, call).getMessage();
        assertTrue(message.contains(what), message);
    }
}
