// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.djlx.collectives.ContractCases.Case;
import org.junit.jupiter.api.function.Executable;

/** Collectives on Java objects. */
final class ObjectCases {

    private ObjectCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("objects", ObjectCases::objects);
        cases.put("objectLists", ObjectCases::objectLists);
        cases.put("objectsOfSubGroups", ObjectCases::objectsOfSubGroups);
        cases.put("objectsThatCannotBeSent", ObjectCases::objectsThatCannotBeSent);
        cases.put("objectsTooLarge", ObjectCases::objectsTooLarge);
        cases.put("objectsThatCannotBeRead", ObjectCases::objectsThatCannotBeRead);
        cases.put("objectsOfOtherClasses", ObjectCases::objectsOfOtherClasses);
        cases.put("wrongRootsOfObjects", ObjectCases::wrongRootsOfObjects);
        cases.put("objectMismatches", ObjectCases::objectMismatches);
        return cases;
    }

    /** The object that a rank sends; its size differs between ranks. */
    private record Shard(int rank, List<String> files) implements Serializable {

        private static final long serialVersionUID = 1L;

        static Shard of(int rank) {
            return new Shard(rank, IntStream.range(0, 50 * rank).mapToObj(i -> "é" + i).toList());
        }
    }

    /** Fails in the middle of being written. */
    private static final class Failing implements Serializable {

        private static final long serialVersionUID = 1L;

        private void writeObject(ObjectOutputStream out) {
            throw new AssertionError("not this one");
        }
    }

    /** Fails with an error whose text cannot be made. */
    private static final class Mute implements Serializable {

        private static final long serialVersionUID = 1L;

        private static final class Failure extends RuntimeException {

            private static final long serialVersionUID = 1L;

            @Override
            public String toString() {
                throw new StackOverflowError("as of a cycle");
            }
        }

        private void writeObject(ObjectOutputStream out) {
            throw new Failure();
        }
    }

    /** Has no end. */
    private static final class Endless implements Serializable {

        private static final long serialVersionUID = 1L;

        private void writeObject(ObjectOutputStream out) throws java.io.IOException {
            while (true) {
                out.write(new byte[1 << 16]);
            }
        }
    }

    /** A class that can fail to link on a rank that reads it. */
    private static final class Linked implements Serializable {

        private static final long serialVersionUID = 1L;
        private static final ThreadLocal<Boolean> MISSES = ThreadLocal.withInitial(() -> false);

        static void misses(boolean misses) {
            MISSES.set(misses);
        }

        private void readObject(ObjectInputStream in) {
            if (MISSES.get()) {
                throw new NoClassDefFoundError("Part");
            }
        }
    }

    private static List<Shard> shards(ProcessGroup group) {
        return IntStream.range(0, group.worldSize()).mapToObj(Shard::of).toList();
    }

    private static void objects(ProcessGroup group, NDManager manager) {
        ObjectCollectives objects = new ObjectCollectives(group, Shard.class);
        int n = group.worldSize();
        int self = group.rank();
        Shard own = Shard.of(self);
        List<Shard> all = objects.allGatherObject(own);
        assertEquals(shards(group), all);
        assertNotSame(own, all.get(self));
        assertThrows(UnsupportedOperationException.class, () -> all.set(0, own));
        for (int root = 0; root < n; root++) {
            assertEquals(Shard.of(root), objects.broadcastObject(self == root ? own : null, root));
            List<Shard> gathered = objects.gatherObject(own, root);
            assertEquals(self == root ? shards(group) : List.of(), gathered);
            List<Shard> list = self == root ? shards(group) : null;
            assertEquals(own, objects.scatterObjectList(list, root));
        }
        // Null is an object.
        List<Integer> odd = objects.allGatherObject(self % 2 == 0 ? null : self);
        for (int rank = 0; rank < n; rank++) {
            assertEquals(rank % 2 == 0 ? null : rank, odd.get(rank));
        }
        assertNull(objects.<String>broadcastObject(null, 0));
        List<Integer> nulls = new ArrayList<>(Collections.nCopies(n, null));
        assertNull(objects.scatterObjectList(nulls, n - 1));
    }

    private static void objectLists(ProcessGroup group, NDManager manager) {
        ObjectCollectives objects = new ObjectCollectives(group, Shard.class);
        int self = group.rank();
        int n = group.worldSize();
        List<Object> list = new ArrayList<>(List.of(Shard.of(self), "rank " + self, List.of(self)));
        list.add(null);
        if (n == 1) {
            assertThrows(IllegalArgumentException.class, () -> objects.sendObjectList(list, self));
            return;
        }
        int partner = self ^ 1;
        if (partner >= n) {
            return;
        }
        // A list, one that cannot be written, one that is too large for the receiver, a list.
        String[] failures = {"", "not this one", "accepts at most 10", ""};
        for (String failure : failures) {
            boolean small = failure.startsWith("accepts") && self % 2 == 1;
            ObjectCollectives limited = small ? objects.withMaxBytes(10) : objects;
            List<Object> sent = failure.startsWith("not") ? List.of(new Failing()) : list;
            Executable call =
                    self % 2 == 0
                            ? () -> limited.sendObjectList(sent, partner)
                            : () -> {
                                List<Object> received = limited.recvObjectList(partner);
                                List<Object> expected =
                                        new ArrayList<>(
                                                List.of(
                                                        Shard.of(partner),
                                                        "rank " + partner,
                                                        List.of(partner)));
                                expected.add(null);
                                assertEquals(expected, received);
                            };
            if (failure.isEmpty()) {
                assertDoesNotThrow(call::execute);
            } else {
                String message = assertThrows(CollectiveException.class, call).getMessage();
                assertTrue(message.contains(failure), message);
                assertTrue(message.contains("rank " + partner), message);
            }
        }
    }

    /** Roots and orders are those of the sub-group. */
    private static void objectsOfSubGroups(ProcessGroup group, NDManager manager) {
        try (ProcessGroup half = group.split(group.rank() % 2, -group.rank())) {
            ObjectCollectives objects = new ObjectCollectives(half);
            assertEquals(half.ranks(), objects.allGatherObject(group.rank()));
            assertEquals(half.ranks().get(0), objects.broadcastObject(group.rank(), 0));
            int last = half.worldSize() - 1;
            assertEquals(
                    half.rank() == last ? half.ranks() : List.of(),
                    objects.gatherObject(group.rank(), last));
            assertEquals(group.rank(), objects.scatterObjectList(half.ranks(), last));
        }
    }

    private static void objectsThatCannotBeSent(ProcessGroup group, NDManager manager) {
        ObjectCollectives objects = new ObjectCollectives(group, Failing.class, Mute.class);
        int odd = group.worldSize() - 1;
        boolean isOdd = group.rank() == odd;
        Object deep = "deep";
        for (int i = 0; i < 100_000; i++) {
            deep = new Object[] {deep};
        }
        Object nested = deep;
        assertRefused(
                group,
                () -> objects.allGatherObject(isOdd ? new Object() : "fine"),
                odd,
                "java.lang.Object does not implement Serializable");
        assertRefused(
                group,
                () -> objects.allGatherObject(isOdd ? Shard.of(1) : "fine"),
                odd,
                Shard.class.getName() + " is not an allowed class");
        assertRefused(
                group,
                () -> objects.allGatherObject(isOdd ? new Failing() : "fine"),
                odd,
                "not this one");
        assertRefused(
                group,
                () -> objects.allGatherObject(isOdd ? new Mute() : "fine"),
                odd,
                Mute.Failure.class.getName());
        assertRefused(
                group, () -> objects.allGatherObject(isOdd ? nested : null), odd, "StackOverflow");
        assertRefused(
                group,
                () -> objects.broadcastObject(isOdd ? new Object() : null, odd),
                odd,
                "java.lang.Object");
        assertRefused(
                group,
                () -> objects.gatherObject(isOdd ? new Object() : "fine", 0),
                odd,
                "java.lang.Object");
        List<Object> list = new ArrayList<>(Collections.nCopies(group.worldSize(), "fine"));
        list.set(0, new Object());
        assertRefused(
                group,
                () -> objects.scatterObjectList(isOdd ? list : null, odd),
                odd,
                "java.lang.Object");
        assertRefused(
                group,
                () -> objects.scatterObjectList(isOdd ? List.of() : null, odd),
                odd,
                "one object for each of the " + group.worldSize() + " ranks, but has 0");
        assertRefused(
                group,
                () -> objects.scatterObjectList(null, odd),
                odd,
                "one object for each of the " + group.worldSize() + " ranks, but is null");
        // The ranks are in step.
        assertEquals(group.ranks(), objects.allGatherObject(group.rank()));
    }

    private static void objectsTooLarge(ProcessGroup group, NDManager manager) {
        int odd = group.worldSize() - 1;
        boolean isOdd = group.rank() == odd;
        ObjectCollectives objects = new ObjectCollectives(group, Endless.class).withMaxBytes(1000);
        assertRefused(
                group,
                () -> objects.allGatherObject(isOdd ? new byte[1001] : null),
                odd,
                "more than 1000 bytes");
        assertRefused(
                group,
                () -> objects.broadcastObject(isOdd ? new Endless() : null, odd),
                odd,
                "more than 1000 bytes");
        byte[] fits = new byte[900];
        assertEquals(900, objects.allGatherObject(fits).get(odd).length);
        // The smallest limit holds.
        ObjectCollectives other = objects.withMaxBytes(isOdd ? 500 : 1000);
        assertRefused(
                group,
                () -> other.allGatherObject(isOdd == (group.worldSize() == 1) ? fits : null),
                0,
                group.worldSize() == 1
                        ? "more than 500 bytes"
                        : "rank " + odd + " accepts at most 500");
        assertEquals(group.ranks(), other.allGatherObject(group.rank()));
        assertThrows(IllegalArgumentException.class, () -> objects.withMaxBytes(0));
    }

    /** A rank that lacks a class of the others fails alone. */
    private static void objectsOfOtherClasses(ProcessGroup group, NDManager manager) {
        ObjectCollectives objects = new ObjectCollectives(group, Linked.class);
        boolean isOdd = group.rank() == 1;
        Linked.misses(isOdd);
        try {
            Executable call = () -> objects.broadcastObject(isOdd ? null : new Linked(), 0);
            if (isOdd) {
                String message = assertThrows(CollectiveException.class, call).getMessage();
                assertTrue(message.contains("rank 1 cannot read the object of rank 0"), message);
                assertTrue(message.contains("NoClassDefFoundError: Part"), message);
            } else {
                assertInstanceOf(Linked.class, objects.broadcastObject(new Linked(), 0));
            }
        } finally {
            Linked.misses(false);
        }
        assertEquals(group.ranks(), objects.allGatherObject(group.rank()));
    }

    /** A rank that allows less than the others fails alone. */
    private static void objectsThatCannotBeRead(ProcessGroup group, NDManager manager) {
        boolean isOdd = group.rank() == 1;
        ObjectCollectives objects =
                isOdd ? new ObjectCollectives(group) : new ObjectCollectives(group, Shard.class);
        Executable call = () -> objects.broadcastObject(Shard.of(2), 0);
        if (isOdd) {
            String message = assertThrows(CollectiveException.class, call).getMessage();
            assertTrue(message.contains("rank 1 cannot read the object of rank 0"), message);
            assertTrue(message.contains(Shard.class.getName()), message);
        } else {
            assertEquals(Shard.of(2), objects.<Shard>broadcastObject(Shard.of(2), 0));
        }
        assertEquals(group.ranks(), objects.allGatherObject(group.rank()));
    }

    private static void wrongRootsOfObjects(ProcessGroup group, NDManager manager) {
        ObjectCollectives objects = new ObjectCollectives(group);
        for (int root : new int[] {-1, group.worldSize()}) {
            for (Executable call :
                    List.<Executable>of(
                            () -> objects.broadcastObject(1, root),
                            () -> objects.gatherObject(1, root),
                            () -> objects.scatterObjectList(List.of(), root))) {
                String message = assertThrows(IllegalArgumentException.class, call).getMessage();
                assertTrue(message.contains("root " + root + " is out of range"), message);
            }
        }
    }

    private static void objectMismatches(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        ObjectCollectives objects = new ObjectCollectives(group);
        boolean odd = group.rank() == 1;
        assertMismatch(
                () -> objects.broadcastObject("x", odd ? 1 : 0),
                "broadcastObject(int8, (256), root 1)",
                "broadcastObject(int8, (256), root 0)");
        assertMismatch(
                () -> {
                    if (odd) {
                        objects.allGatherObject("x");
                    } else {
                        objects.gatherObject("x", 0);
                    }
                },
                "allGatherObject(",
                "gatherObject(");
        assertEquals(group.ranks(), objects.allGatherObject(group.rank()));
    }

    private static void assertMismatch(Executable call, String one, String another) {
        String message = assertThrows(CollectiveMismatchException.class, call).getMessage();
        assertTrue(message.contains(one) && message.contains(another), message);
    }

    /** The call fails on all ranks, naming the one whose object it is; only that has the cause. */
    private static void assertRefused(
            ProcessGroup group, Executable call, int rank, String reason) {
        CollectiveException e = assertThrows(CollectiveException.class, call);
        String message = e.getMessage();
        assertTrue(message.contains("'" + group.name() + "'"), message);
        assertTrue(message.contains("rank " + rank + ": "), message);
        assertTrue(message.contains(reason), message);
        if (group.rank() == rank && !message.contains("at most 500")) {
            assertNotNull(e.getCause());
        }
    }
}
