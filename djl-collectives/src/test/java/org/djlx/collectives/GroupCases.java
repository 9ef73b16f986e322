// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.function.Executable;

/** Sub-groups, their names and their end, and the monitored barrier. */
final class GroupCases {

    private GroupCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("ranksOfSubGroups", GroupCases::ranksOfSubGroups);
        cases.put("rootsOfSubGroups", GroupCases::rootsOfSubGroups);
        cases.put("newGroup", GroupCases::newGroup);
        cases.put("newGroupDiffers", GroupCases::newGroupDiffers);
        cases.put("wrongGroups", GroupCases::wrongGroups);
        cases.put("nameGivenAgain", GroupCases::nameGivenAgain);
        cases.put("split", GroupCases::split);
        cases.put("shrink", GroupCases::shrink);
        cases.put("deviceMesh", GroupCases::deviceMesh);
        cases.put("slicesOfDeviceMesh", GroupCases::slicesOfDeviceMesh);
        cases.put("newGroupOfAnotherBackend", GroupCases::newGroupOfAnotherBackend);
        cases.put("failureOfAGroup", GroupCases::failureOfAGroup);
        cases.put("deviceMeshDiffers", GroupCases::deviceMeshDiffers);
        cases.put("subGroupsOfSubGroups", GroupCases::subGroupsOfSubGroups);
        cases.put("subGroupOfOne", GroupCases::subGroupOfOne);
        cases.put("crosswise", GroupCases::crosswise);
        cases.put("destroyed", GroupCases::destroyed);
        cases.put("destroyedWhilePending", GroupCases::destroyedWhilePending);
        cases.put("peerDestroyed", GroupCases::peerDestroyed);
        cases.put("timeouts", GroupCases::timeouts);
        cases.put("monitoredBarrier", GroupCases::monitoredBarrier);
        cases.put("monitoredBarrierMissing", GroupCases::monitoredBarrierMissing);
        cases.put("monitoredBarrierTimeout", GroupCases::monitoredBarrierTimeout);
        return cases;
    }

    /** The sum of the ranks' numbers, over a group. */
    private static double sum(ProcessGroup group, NDManager manager, double number) {
        NDArray tensor = TestArrays.of(manager, ScalarType.FLOAT64, new Shape(1), number);
        group.allReduce(tensor, ReduceOp.SUM).await();
        return TestArrays.values(tensor)[0];
    }

    private static List<Integer> everyOther(ProcessGroup group) {
        return IntStream.range(0, group.worldSize()).filter(rank -> rank % 2 == 0).boxed().toList();
    }

    private static void newGroup(ProcessGroup group, NDManager manager) {
        List<Integer> ranks = new ArrayList<>(everyOther(group));
        double expected = ranks.stream().mapToInt(rank -> rank).sum();
        Collections.reverse(ranks);
        ProcessGroup evens = group.newGroup(ranks, "evens");
        assertEquals(group.name() + ".evens", evens.name());
        assertEquals(ranks.size(), evens.worldSize());
        if (group.rank() % 2 == 0) {
            assertTrue(evens.isMember());
            assertEquals(group.rank() / 2, evens.rank());
            assertEquals(expected, sum(evens, manager, group.rank()));
        } else {
            assertFalse(evens.isMember());
            assertEquals(-1, evens.rank());
            String message = assertThrows(IllegalStateException.class, evens::barrier).getMessage();
            assertTrue(message.contains("not a member of group '" + evens.name()), message);
            assertTrue(message.contains("rank " + group.rank()), message);
            assertThrows(IllegalStateException.class, () -> evens.newGroup(List.of(0)));
        }
        // Names without being given; the parent goes on.
        ProcessGroup all = group.newGroup(IntStream.range(0, group.worldSize()).boxed().toList());
        assertTrue(all.name().startsWith(group.name() + "."), all.name());
        assertEquals(group.worldSize(), sum(all, manager, 1));
        evens.destroy();
        all.destroy();
        assertEquals(group.worldSize(), sum(group, manager, 1));
    }

    /** The last rank takes no part, and nothing is wrong with the group. */
    private static void shrink(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        ProcessGroup parent = copy(group);
        assertThrows(IllegalArgumentException.class, () -> parent.shrink(null));
        assertThrows(IllegalArgumentException.class, () -> parent.shrink(List.of()));
        assertThrows(IllegalArgumentException.class, () -> parent.shrink(List.of(n)));
        assertThrows(IllegalArgumentException.class, () -> parent.shrink(List.of(parent.rank())));
        if (n > 1 && group.rank() < n - 1) {
            for (int round = 0; round < 2; round++) {
                ProcessGroup rest = parent.shrink(List.of(n - 1));
                assertEquals(n - 1, rest.worldSize());
                assertEquals(group.rank(), rest.rank());
                int expected = IntStream.range(0, n - 1).sum();
                assertEquals(expected, sum(rest, manager, group.rank()));
                rest.destroy();
            }
        }
        group.barrier().await();
        parent.destroy();
    }

    /** A grid of 2 x n/2 ranks, or of 1 x n. */
    private static void deviceMesh(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        int rows = n % 2 == 0 ? 2 : 1;
        int columns = n / rows;
        DeviceMesh mesh = DeviceMesh.create(group, new int[] {rows, 1, columns}, "dp", "pp", "tp");
        int row = group.rank() / columns;
        int column = group.rank() % columns;
        assertEquals(List.of("dp", "pp", "tp"), mesh.names());
        assertEquals(columns, mesh.size("tp"));
        assertEquals(column, mesh.localRank("tp"));
        assertEquals(row, mesh.localRank("dp"));
        assertEquals(0, mesh.localRank("pp"));
        ProcessGroup tp = mesh.group("tp");
        ProcessGroup dp = mesh.group("dp");
        assertEquals(column, tp.rank());
        assertEquals(row, dp.rank());
        assertEquals(rows, dp.worldSize());
        int rowSum = IntStream.range(row * columns, (row + 1) * columns).sum();
        assertEquals(rowSum, sum(tp, manager, group.rank()));
        int columnSum = IntStream.range(0, rows).map(i -> i * columns + column).sum();
        assertEquals(columnSum, sum(dp, manager, group.rank()));
        assertEquals(group.rank(), sum(mesh.group("pp"), manager, group.rank()));
        String unknown =
                assertThrows(IllegalArgumentException.class, () -> mesh.group("x")).getMessage();
        assertTrue(unknown.contains("[dp, pp, tp]"), unknown);
        mesh.names().forEach(name -> mesh.group(name).destroy());
    }

    /** A mesh of rows and columns of one, so that a slice leaves ranks out. */
    private static void slicesOfDeviceMesh(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        int rows = n % 2 == 0 ? 2 : 1;
        int columns = n / rows;
        DeviceMesh mesh = DeviceMesh.create(group, new int[] {rows, 1, columns}, "dp", "pp", "tp");
        int row = group.rank() / columns;
        int column = group.rank() % columns;
        assertEquals(List.of(row, 0, column), mesh.coordinates());
        DeviceMesh slice = mesh.slice("pp", "tp");
        assertEquals(List.of("pp", "tp"), slice.names());
        assertEquals(List.of(0, column), slice.coordinates());
        assertSame(mesh.group("tp"), slice.group("tp"));
        DeviceMesh replica = slice.flatten("pp_tp");
        List<Integer> ranks = IntStream.range(row * columns, (row + 1) * columns).boxed().toList();
        assertEquals(ranks, replica.group("pp_tp").parentRanks());
        assertEquals(column, replica.localRank("pp_tp"));
        assertEquals(columns, replica.size("pp_tp"));
        DeviceMesh whole = mesh.slice("dp", "tp").flatten("all");
        assertEquals(n, whole.group("all").worldSize());
        assertEquals(List.of(group.rank()), whole.coordinates());
        DeviceMesh outer = mesh.slice("dp", "pp").flatten("outer");
        List<Integer> strided =
                IntStream.range(0, rows).mapToObj(each -> each * columns + column).toList();
        assertEquals(strided, outer.group("outer").parentRanks());
        assertEquals(n, sum(whole.group("all"), manager, 1));
        for (Executable wrong :
                List.<Executable>of(
                        mesh::slice,
                        () -> mesh.slice("tp", "dp"),
                        () -> mesh.slice("tp", "tp"),
                        () -> slice.slice("dp"),
                        () -> mesh.slice((String) null),
                        () -> mesh.flatten(null))) {
            assertThrows(IllegalArgumentException.class, wrong);
        }
    }

    private static void newGroupOfAnotherBackend(ProcessGroup group, NDManager manager) {
        List<Integer> ranks = everyOther(group);
        BackendOptions options = new BackendOptions(Duration.ofSeconds(77));
        ProcessGroup evens = group.newGroup(ranks, "onTheHost", "shm", options);
        assertEquals(group.name() + ".onTheHost", evens.name());
        assertEquals(group.rank() % 2 == 0, evens.isMember());
        if (evens.isMember()) {
            assertEquals("shm", evens.backendName());
            assertEquals(Duration.ofSeconds(77), evens.timeout());
            assertEquals(Device.cpu(), evens.device());
            double expected = ranks.stream().mapToInt(rank -> rank).sum();
            try (NDManager host = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
                assertEquals(expected, sum(evens, host, group.rank()));
            }
        }
        String unknown =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> group.newGroup(ranks, "other", "smh", options))
                        .getMessage();
        assertTrue(unknown.contains("smh"), unknown);
        if (group.worldSize() > 1 && !group.backendName().equals("shm")) {
            String backend = group.rank() == 1 ? group.backendName() : "shm";
            String message =
                    assertThrows(
                                    CollectiveMismatchException.class,
                                    () -> group.newGroup(ranks, "differ", backend, options))
                            .getMessage();
            assertTrue(message.contains("with backend 'shm'"), message);
        }
        assertEquals(group.worldSize(), sum(group, manager, 1));
    }

    private static void failureOfAGroup(ProcessGroup group, NDManager manager) {
        ProcessGroup broken = group.newGroup(everyone(group));
        assertEquals(Optional.empty(), broken.failure());
        group.barrier().await();
        if (group.rank() == 0) {
            broken.abort(new IllegalStateException("the reader ended"));
        }
        long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (broken.failure().isEmpty() && System.nanoTime() < deadline) {
            Thread.onSpinWait();
        }
        String failure = broken.failure().orElseThrow().getMessage();
        assertTrue(failure.contains("the reader ended"), failure);
        broken.destroy();
        assertEquals(Optional.empty(), group.failure());
    }

    private static List<Integer> everyone(ProcessGroup group) {
        return IntStream.range(0, group.worldSize()).boxed().toList();
    }

    private static void deviceMeshDiffers(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> DeviceMesh.create(group, new int[] {n, 2}, "a", "b"))
                        .getMessage();
        assertTrue(message.contains("must be " + n), message);
        for (Executable wrong :
                List.<Executable>of(
                        () -> DeviceMesh.create(group, new int[] {n}, "a", "b"),
                        () -> DeviceMesh.create(group, new int[] {n, 1}, "a", "a"),
                        () -> DeviceMesh.create(group, new int[] {-1, -n}, "a", "b"),
                        () -> DeviceMesh.create(group, new int[] {n}, (String) null),
                        () -> DeviceMesh.create(group, null, "a"))) {
            assertThrows(IllegalArgumentException.class, wrong);
        }
        if (n > 1) {
            int[] shape = group.rank() == 1 ? new int[] {1, n} : new int[] {n, 1};
            message =
                    assertThrows(
                                    CollectiveMismatchException.class,
                                    () -> DeviceMesh.create(group, shape, "a", "b"))
                            .getMessage();
            assertTrue(message.contains("[a " + n + ", b 1]"), message);
            assertTrue(message.contains("[a 1, b " + n + "]"), message);
        }
        assertEquals(n, sum(group, manager, 1));
    }

    private static void newGroupDiffers(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        List<Integer> ranks = group.rank() == 1 ? List.of(0) : List.of(0, 1);
        String message =
                assertThrows(
                                CollectiveMismatchException.class,
                                () -> group.newGroup(ranks, "differs"))
                        .getMessage();
        assertTrue(message.contains("newGroup([0, 1], 'differs')"), message);
        assertTrue(message.contains("newGroup([0], 'differs')"), message);
        // Another operation instead: all see it at once, and go on creating groups together.
        Executable call =
                group.rank() == 1
                        ? () -> group.allReduce(manager.ones(new Shape(1)), ReduceOp.SUM).await()
                        : () -> group.newGroup(List.of(0));
        message = assertThrows(CollectiveMismatchException.class, call).getMessage();
        assertTrue(message.contains("newGroup(") && message.contains("allReduce("), message);
        copy(group).destroy();
        assertEquals(group.worldSize(), sum(group, manager, 1));
    }

    private static void wrongGroups(ProcessGroup group, NDManager manager) {
        for (List<Integer> ranks :
                List.of(
                        List.<Integer>of(),
                        List.of(group.worldSize()),
                        List.of(-1),
                        List.of(0, 0))) {
            assertThrows(IllegalArgumentException.class, () -> group.newGroup(ranks));
        }
        // Without a name, groups are called by numbers and dots.
        for (String name : List.of("x".repeat(201), "", "0", "12", "1.2", "x.0", ".")) {
            assertThrows(IllegalArgumentException.class, () -> group.newGroup(List.of(0), name));
        }
    }

    /** All ranks refuse it, members or not, and nothing has happened. */
    private static void nameGivenAgain(ProcessGroup group, NDManager manager) {
        ProcessGroup first = group.newGroup(List.of(0), "given");
        int last = group.worldSize() - 1;
        for (int again = 0; again < 2; again++) {
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> group.newGroup(List.of(last), "given"))
                            .getMessage();
            assertTrue(message.contains("'" + group.name() + "'"), message);
            assertTrue(message.contains("'given'"), message);
            first.destroy(); // Only its members know.
        }
        // Within another group it is another name.
        ProcessGroup part = group.split(group.rank() % 2, 0);
        ProcessGroup second = part.newGroup(List.of(0), "given");
        assertEquals(part.name() + ".given", second.name());
        part.destroy();
        assertEquals(group.worldSize(), sum(group, manager, 1));
    }

    private static void split(ProcessGroup group, NDManager manager) {
        int self = group.rank();
        int n = group.worldSize();
        // By parity, in reverse order.
        ProcessGroup half = group.split(self % 2, -self);
        int size = (n + 1 - self % 2) / 2;
        assertEquals(size, half.worldSize());
        assertEquals(size - 1 - self / 2, half.rank());
        int expected = IntStream.range(0, n).filter(rank -> rank % 2 == self % 2).sum();
        assertEquals(expected, sum(half, manager, self));
        half.destroy();
        // Rank 0 stays out; equal keys keep the order.
        ProcessGroup rest = group.split(self == 0 ? -1 : 3, 0);
        assertEquals(self != 0, rest.isMember());
        if (rest.isMember()) {
            assertEquals(self - 1, rest.rank());
            assertEquals(n - 1, sum(rest, manager, 1));
        }
        rest.destroy();
    }

    private static void subGroupsOfSubGroups(ProcessGroup group, NDManager manager) {
        ProcessGroup current = group;
        List<ProcessGroup> groups = new ArrayList<>();
        while (current.worldSize() > 1) {
            current = current.split(current.rank() * 2 / current.worldSize(), current.rank());
            groups.add(current);
            assertEquals(current.worldSize(), sum(current, manager, 1));
        }
        for (ProcessGroup one : groups) {
            assertEquals(one.worldSize(), sum(one, manager, 1));
        }
        // With the first go those made of it.
        if (!groups.isEmpty()) {
            groups.get(0).destroy();
            assertThrows(IllegalStateException.class, groups.get(groups.size() - 1)::barrier);
        }
    }

    private static void subGroupOfOne(ProcessGroup group, NDManager manager) {
        try (ProcessGroup alone = group.split(group.rank(), 0)) {
            assertEquals(1, alone.worldSize());
            assertEquals(group.rank(), sum(alone, manager, group.rank()));
            NDArray tensor = manager.full(new Shape(30_000), 3f);
            alone.reduceScatterTensor(tensor, tensor, ReduceOp.AVG).await();
            alone.allGatherIntoTensor(tensor, tensor).await();
            alone.broadcast(tensor, 0).await();
            alone.monitoredBarrier(Duration.ofMinutes(1), true);
            assertEquals(3, TestArrays.values(tensor)[29_999]);
        }
    }

    /** One rank issues first on one group, then on the other; the others the other way round. */
    private static void crosswise(ProcessGroup group, NDManager manager) {
        List<Integer> all = IntStream.range(0, group.worldSize()).boxed().toList();
        try (ProcessGroup a = group.newGroup(all);
                ProcessGroup b = group.newGroup(all)) {
            for (int i = 0; i < 20; i++) {
                NDArray one = manager.ones(new Shape(30_000));
                NDArray two = manager.full(new Shape(30_000), 2f);
                boolean first = group.rank() == 0;
                Work work = first ? a.allReduce(one, ReduceOp.SUM) : b.allReduce(two, ReduceOp.SUM);
                Work other =
                        first ? b.allReduce(two, ReduceOp.SUM) : a.allReduce(one, ReduceOp.SUM);
                work.await();
                other.await();
                assertEquals(group.worldSize(), TestArrays.values(one)[0]);
                assertEquals(2 * group.worldSize(), TestArrays.values(two)[29_999]);
                one.close();
                two.close();
            }
            group.barrier().await();
        }
    }

    private static ProcessGroup copy(ProcessGroup group) {
        return group.split(0, 0);
    }

    private static void destroyed(ProcessGroup group, NDManager manager) {
        ProcessGroup copy = copy(group);
        ProcessGroup view = copy.withTimeout(Duration.ofMinutes(2));
        NDArray tensor = manager.ones(new Shape(1));
        copy.barrier().await();
        view.destroy();
        copy.destroy();
        for (Executable call :
                List.<Executable>of(
                        copy::barrier,
                        view::barrier,
                        copy::p2pBuffers,
                        () -> copy.allReduce(tensor, ReduceOp.SUM),
                        () -> copy.recvAnySource(tensor, 0),
                        () -> copy.split(0, 0),
                        () -> copy.newGroup(List.of(0)),
                        () -> copy.monitoredBarrier(Duration.ofMinutes(1), true))) {
            String message = assertThrows(IllegalStateException.class, call).getMessage();
            assertTrue(message.contains("'" + copy.name() + "' has been destroyed"), message);
        }
        assertEquals(group.worldSize(), sum(group, manager, 1));
    }

    /** A running operation fails when its own rank destroys the group. */
    private static void destroyedWhilePending(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        ProcessGroup copy = copy(group);
        if (group.rank() == 0) {
            List<Work> works =
                    List.of(
                            copy.allReduce(manager.ones(new Shape(1)), ReduceOp.SUM),
                            copy.barrier(),
                            copy.recv(manager.ones(new Shape(1)), 1, 0),
                            copy.send(manager.ones(new Shape(1)), 1, 0),
                            copy.recvAnySource(manager.ones(new Shape(1)), 1));
            copy.destroy();
            for (Work work : works) {
                assertTrue(work.isCompleted());
                String message = assertThrows(CollectiveException.class, work::await).getMessage();
                assertTrue(message.contains("this rank destroyed the group"), message);
            }
        }
        group.barrier().await();
        copy.destroy();
    }

    /** An operation that waits for a rank that has left fails and names the rank. */
    private static void peerDestroyed(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        ProcessGroup copy = copy(group);
        int last = group.worldSize() - 1;
        if (group.rank() == last) {
            // Messages sent before still arrive.
            copy.send(manager.full(new Shape(50_000), 9f), 0, 0).await();
            copy.destroy();
        } else if (group.rank() == 0) {
            NDArray tensor = manager.zeros(new Shape(50_000));
            copy.recv(tensor, last, 0).await();
            assertEquals(9, TestArrays.values(tensor)[49_999]);
            for (Work work : List.of(copy.recv(tensor, last, 0), copy.send(tensor, last, 0))) {
                String message = assertThrows(CollectiveException.class, work::await).getMessage();
                assertTrue(message.contains("rank " + last + " has destroyed"), message);
            }
        }
        group.barrier().await();
        copy.destroy();
    }

    private static void timeouts(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        ProcessGroup copy = copy(group);
        if (group.rank() == 0) {
            ProcessGroup hasty = copy.withTimeout(Duration.ofMillis(30));
            assertEquals(Duration.ofMillis(30), hasty.timeout());
            CollectiveTimeoutException e =
                    assertThrows(CollectiveTimeoutException.class, () -> hasty.barrier().await());
            assertEquals(IntStream.range(1, group.worldSize()).boxed().toList(), e.missingRanks());
            assertTrue(e.getMessage().contains("30 ms"), e.getMessage());
        }
        group.barrier().await();
        copy.destroy();
    }

    private static void monitoredBarrier(ProcessGroup group, NDManager manager) {
        for (int i = 0; i < 5; i++) {
            group.monitoredBarrier(Duration.ofMinutes(1), i % 2 == 0);
        }
        assertEquals(group.worldSize(), sum(group, manager, 1));
    }

    /** The two last ranks have left: all others learn of it. */
    private static void monitoredBarrierMissing(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        if (n < 3) {
            return;
        }
        for (boolean all : new boolean[] {true, false}) {
            ProcessGroup copy = copy(group);
            if (group.rank() >= n - 2) {
                copy.destroy();
            } else {
                CollectiveTimeoutException e =
                        assertThrows(
                                CollectiveTimeoutException.class,
                                () -> copy.monitoredBarrier(Duration.ofSeconds(50), all));
                assertEquals(all ? List.of(n - 2, n - 1) : List.of(n - 2), e.missingRanks());
                assertTrue(e.getMessage().contains("ranks " + e.missingRanks()), e.getMessage());
                assertTrue(e.getMessage().contains(copy.name()), e.getMessage());
                // No rank has waited that long.
                assertTrue(
                        e.getMessage().contains(e.missingRanks() + " have left, died or failed"),
                        e.getMessage());
                // The others can go on among themselves.
                if (group.rank() == 0 && n > 3) {
                    copy.send(manager.ones(new Shape(1)), 1, 0).await();
                } else if (group.rank() == 1) {
                    copy.recv(manager.ones(new Shape(1)), 0, 0).await();
                }
            }
            group.barrier().await();
            copy.destroy();
        }
    }

    /** The ranks come one after the other, each too late; afterwards the group still works. */
    private static void monitoredBarrierTimeout(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        if (n == 1) {
            return;
        }
        for (int alone = 0; alone < n; alone++) {
            if (group.rank() == alone) {
                CollectiveTimeoutException e =
                        assertThrows(
                                CollectiveTimeoutException.class,
                                () -> group.monitoredBarrier(Duration.ofMillis(30), true));
                assertEquals(
                        alone == 0 ? IntStream.range(1, n).boxed().toList() : List.of(0),
                        e.missingRanks());
                assertTrue(e.getMessage().contains("within 30 ms"), e.getMessage());
            }
            group.barrier().await();
        }
        group.monitoredBarrier(Duration.ofMinutes(1), true);
        assertEquals(n, sum(group, manager, 1));
    }

    /** Ranks of a group of a group, and back. */
    private static void ranksOfSubGroups(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        assertEquals(IntStream.range(0, n).boxed().toList(), group.ranks());
        ProcessGroup reversed = group.split(0, -group.rank());
        List<Integer> backwards = IntStream.range(0, n).map(i -> n - 1 - i).boxed().toList();
        assertEquals(backwards, reversed.ranks());
        assertEquals(group.rank(), reversed.globalRank(reversed.rank()));
        assertEquals(group.ranks(), group.parentRanks());
        assertEquals(backwards, reversed.parentRanks());
        ProcessGroup first = reversed.newGroup(List.of(0));
        assertEquals(List.of(0), first.parentRanks()); // Of the direct parent.
        ProcessGroup last = reversed.newGroup(List.of(n - 1));
        assertEquals(List.of(0), last.ranks());
        assertEquals(List.of(n - 1), last.parentRanks());
        assertEquals(n - 1, reversed.groupRank(last.globalRank(0)));
        assertEquals(List.of(), group.split(-1, 0).parentRanks());
        assertEquals(List.of(n - 1), first.ranks()); // Also where it is not a member.
        assertEquals(0, first.groupRank(n - 1));
        String message =
                assertThrows(IllegalArgumentException.class, () -> first.groupRank(n)).getMessage();
        assertTrue(message.contains("global rank " + n + " is not a member"), message);
        assertThrows(IllegalArgumentException.class, () -> first.globalRank(1));
    }

    /**
     * Roots and peers count the ranks of the group that is called, whatever these are elsewhere.
     */
    private static void rootsOfSubGroups(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        ProcessGroup reversed = group.split(0, -group.rank());
        int self = reversed.rank();
        for (int root = 0; root < n; root++) {
            NDArray sent = manager.full(new Shape(3), self + 1f);
            reversed.broadcast(sent, root).await();
            assertEquals(root + 1, TestArrays.values(sent)[0]);
            NDArray reduced = manager.ones(new Shape(3));
            reversed.reduce(reduced, root, ReduceOp.SUM).await();
            assertEquals(self == root ? n : 1, TestArrays.values(reduced)[0]);
            NDArray own = manager.full(new Shape(1), (float) self);
            List<NDArray> all =
                    IntStream.range(0, n).mapToObj(rank -> manager.zeros(new Shape(1))).toList();
            reversed.gather(self == root ? all : null, own, root).await();
            if (self == root) {
                for (int rank = 0; rank < n; rank++) {
                    assertEquals(rank, TestArrays.values(all.get(rank))[0]);
                }
            }
            NDArray output = manager.zeros(new Shape(1));
            reversed.scatter(output, self == root ? all : null, root).await();
            assertEquals(self, TestArrays.values(output)[0]);
        }
        if (n > 1 && self < 2) {
            NDArray message = manager.full(new Shape(1), (float) self);
            if (self == 0) {
                reversed.send(message, 1, 0).await();
            } else {
                reversed.recv(message, 0, 0).await();
                assertEquals(0, TestArrays.values(message)[0]);
            }
        }
        reversed.destroy();
    }
}
