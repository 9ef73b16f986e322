// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.djlx.collectives.internal.group.RankGroup;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreThatEnds;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A rank that dies, or does not come, while a sub-group is created. */
@Timeout(120)
@Tag("slow")
class NewGroupFailureTest {

    private static final BackendOptions TEN_SECONDS = new BackendOptions(Duration.ofSeconds(10));
    private static final BackendOptions TEN_MINUTES = new BackendOptions(Duration.ofMinutes(10));

    @Test
    void newGroupDetectsADeadRankBeforeTheTimeout() throws Exception {
        try (RankProcesses ranks = new RankProcesses(3, NewGroupVictimMain.class)) {
            assertEquals(List.of(0, 0, 9), ranks.await());
            String member = ranks.output(0);
            assertTrue(member.contains("the process of rank 2 of group 'default'"), member);
            assertTrue(member.contains("has ended"), member);
            String other = ranks.output(1);
            assertTrue(other.contains("failed: ") && other.contains("rank 2"), other);
        }
    }

    /** The others have all that the store can tell them by then, and meet in the memory. */
    @Test
    void newGroupDetectsADeathDuringTheStoreRendezvous() throws Exception {
        try (RankProcesses ranks = new RankProcesses(3, NewGroupVictimMain.class, "mapped")) {
            assertEquals(List.of(0, 0, 9), ranks.await());
            String member = ranks.output(0);
            assertTrue(member.contains("the process of rank 1 "), member);
            assertTrue(member.contains("has ended"), member);
        }
    }

    /** As when memory runs out: the rank never arrives in the shared memory. */
    @Test
    void newGroupDoesNotWaitForARankThatFailedInTheStoreRendezvous() throws Exception {
        Runnable fail =
                () -> {
                    throw new OutOfMemoryError("on purpose");
                };
        try (Store store = new HashStore()) {
            BackendOptions options = new BackendOptions(Duration.ofMinutes(10));
            GroupContext context = new GroupContext("g", 0, 2, store, options, null);
            FutureTask<ProcessGroup> other =
                    new FutureTask<>(
                            () -> ProcessGroups.create("shm", context, Optional.empty(), () -> {}));
            new Thread(other).start();
            GroupContext failing =
                    StoreThatEnds.at(
                            "mapped/", new GroupContext("g", 1, 2, store, options, null), fail);
            assertThrows(
                    OutOfMemoryError.class,
                    () -> ProcessGroups.create("shm", failing, Optional.empty(), () -> {}));
            Throwable e = assertThrows(ExecutionException.class, other::get).getCause();
            assertTrue(e.getMessage().contains("rank 1 has destroyed the group"), e.toString());
        }
    }

    @Test
    void newGroupDoesNotWaitForARankWhoseBackendRefusesItsOptions() throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 3, TEN_SECONDS);
        List<FutureTask<ProcessGroup>> tasks =
                groups.stream().map(NewGroupFailureTest::newGroupWithOtherOptions).toList();
        tasks.forEach(task -> new Thread(task).start());
        Throwable own = assertThrows(ExecutionException.class, tasks.get(2)::get).getCause();
        assertEquals(IllegalArgumentException.class, own.getClass(), own.toString());
        Throwable other = assertThrows(ExecutionException.class, tasks.get(1)::get).getCause();
        assertFalse(other instanceof CollectiveTimeoutException, other.toString());
        assertTrue(other.getMessage().contains("rank 2 of group 'local"), other.toString());
        assertTrue(other.getMessage().contains("NcclOptions"), other.toString());
        assertFalse(tasks.get(0).get().isMember());
        for (ProcessGroup group : groups) {
            assertEquals(Optional.empty(), group.failure());
            group.destroy();
        }
    }

    private static FutureTask<ProcessGroup> newGroupWithOtherOptions(ProcessGroup group) {
        BackendOptions options = group.rank() == 2 ? NcclOptions.builder().build() : TEN_SECONDS;
        return new FutureTask<>(() -> group.newGroup(List.of(1, 2), "part", "shm", options));
    }

    /** Calls of several operations: an interrupted rank never begins the second. */
    @Test
    void interruptOfARankEndsTheOthersCalls() throws Exception {
        List<Function<ProcessGroup, Object>> calls =
                List.of(
                        group -> group.newGroup(List.of(1, 2)),
                        group -> group.newGroup(List.of(0, 1)),
                        group -> group.split(0, 0),
                        group -> new ObjectCollectives(group).allGatherObject("object"));
        for (Function<ProcessGroup, Object> call : calls) {
            List<ProcessGroup> groups = ProcessGroups.local("shm", 3, TEN_MINUTES);
            List<FutureTask<Object>> others =
                    groups.subList(0, 2).stream().map(group -> started(group, call)).toList();
            assertInterrupted(groups.get(2), call);
            for (FutureTask<Object> other : others) {
                Throwable e = assertThrows(ExecutionException.class, other::get).getCause();
                assertTrue(e.getMessage().contains("rank 2 failed: interrupted"), e.toString());
            }
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void shrinkDoesNotWaitForAnInterruptedRank() {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 3, TEN_MINUTES);
        Function<ProcessGroup, Object> call = group -> group.shrink(List.of(0));
        assertInterrupted(groups.get(2), call);
        FutureTask<Object> other = started(groups.get(1), call);
        Throwable e = assertThrows(ExecutionException.class, other::get).getCause();
        assertTrue(e.getMessage().contains("failed: "), e.toString());
        assertTrue(e.getMessage().contains("interrupted"), e.toString());
        groups.forEach(ProcessGroup::destroy);
    }

    @Test
    void monitoredBarrierDoesNotWaitForTheInterruptedRank0() {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, TEN_MINUTES);
        Function<ProcessGroup, Object> call =
                group -> {
                    group.monitoredBarrier(Duration.ofMinutes(10), true);
                    return group;
                };
        assertInterrupted(groups.get(0), call);
        FutureTask<Object> other = started(groups.get(1), call);
        Throwable e = assertThrows(ExecutionException.class, other::get).getCause();
        assertTrue(e.getMessage().contains("rank 0 failed: interrupted"), e.toString());
        groups.forEach(ProcessGroup::destroy);
    }

    private static void assertInterrupted(ProcessGroup group, Function<ProcessGroup, Object> call) {
        Thread.currentThread().interrupt();
        CollectiveException e = assertThrows(CollectiveException.class, () -> call.apply(group));
        assertTrue(Thread.interrupted());
        assertTrue(e.getMessage().contains("interrupted"), e.toString());
    }

    private static FutureTask<Object> started(
            ProcessGroup group, Function<ProcessGroup, Object> call) {
        FutureTask<Object> task = new FutureTask<>(() -> call.apply(group));
        new Thread(task).start();
        return task;
    }

    /** Rank 1 takes part until the exchange through the store, then destroys the group. */
    @Test
    void splitDoesNotWaitForARankThatDestroyedTheGroup() throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, TEN_SECONDS);
        FutureTask<ProcessGroup> split = split(groups.get(0));
        announceSplit(groups.get(1));
        groups.get(1).destroy();
        Throwable e = assertThrows(ExecutionException.class, split::get).getCause();
        assertFalse(e instanceof CollectiveTimeoutException, e.toString());
        assertTrue(e.getMessage().contains("rank 1 has destroyed the group"), e.toString());
        groups.get(0).destroy();
    }

    @Test
    void destroyEndsNewGroupsWait() throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, TEN_SECONDS);
        FutureTask<ProcessGroup> split = split(groups.get(0));
        announceSplit(groups.get(1));
        groups.get(0).destroy();
        Throwable e = assertThrows(ExecutionException.class, split::get).getCause();
        assertFalse(e instanceof CollectiveTimeoutException, e.toString());
        groups.get(1).destroy();
    }

    private static FutureTask<ProcessGroup> split(ProcessGroup group) {
        FutureTask<ProcessGroup> task = new FutureTask<>(() -> group.split(0, 0));
        new Thread(task).start();
        return task;
    }

    /** What {@code split} does first; returns when the other rank has done so, too. */
    private static void announceSplit(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray all = manager.zeros(new Shape(2, 2), DataType.INT32);
            NDArray own = manager.create(new int[] {0, 0});
            ((RankGroup) group).allGatherIntoTensor(new OpType("split"), 0, all, own).await();
        }
    }

    /** Rank 2 of the group is rank 1 of the sub-group; errors must name its rank in the group. */
    @Test
    void timeoutNamesRanksOfTheParentGroup() throws Exception {
        BackendOptions options = new BackendOptions(Duration.ofMillis(500));
        BiFunction<Integer, Store, FutureTask<ProcessGroup>> rank =
                (self, store) ->
                        new FutureTask<>(
                                () -> {
                                    GroupContext whole =
                                            new GroupContext("g", self, 3, store, options, null);
                                    ProcessGroup group =
                                            ProcessGroups.create(
                                                    "shm", whole, Optional.empty(), () -> {});
                                    // Rank 2 passes wrong arguments, and so never meets the others
                                    // in the store.
                                    return group.newGroup(List.of(0, 2));
                                });
        try (Store store = new HashStore();
                Store elsewhere = new HashStore()) {
            List<FutureTask<ProcessGroup>> tasks = new ArrayList<>();
            for (int self = 0; self < 3; self++) {
                Store own = self == 2 ? new PartElsewhere(store, elsewhere).view() : store;
                tasks.add(rank.apply(self, own));
            }
            tasks.forEach(task -> new Thread(task).start());
            Throwable e = assertThrows(ExecutionException.class, tasks.get(0)::get).getCause();
            assertEquals(CollectiveTimeoutException.class, e.getClass(), e.toString());
            assertEquals(List.of(2), ((CollectiveTimeoutException) e).missingRanks());
            assertTrue(e.getMessage().contains("rank 2 of group 'g'"), e.getMessage());
            assertThrows(ExecutionException.class, tasks.get(2)::get);
            // Rank 1, no member, waits for the others as long as they wait for each other. Its call
            // ends either way, as one or the other is through first.
            try {
                assertFalse(tasks.get(1).get().isMember());
            } catch (ExecutionException late) {
                assertEquals(CollectiveTimeoutException.class, late.getCause().getClass());
            }
        }
    }

    /** A view of a store in which the keys of sub-groups lead to another one. */
    private record PartElsewhere(Store store, Store elsewhere) {

        Store view() {
            return (Store)
                    Proxy.newProxyInstance(
                            Store.class.getClassLoader(),
                            new Class<?>[] {Store.class},
                            (proxy, method, arguments) -> {
                                boolean part =
                                        arguments != null
                                                && String.valueOf(arguments[0]).contains("group0");
                                try {
                                    return method.invoke(part ? elsewhere : store, arguments);
                                } catch (InvocationTargetException e) {
                                    throw e.getCause();
                                }
                            });
        }
    }
}
