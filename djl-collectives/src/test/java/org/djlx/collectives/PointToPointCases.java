// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.djlx.collectives.CaseInputs.COUNTS;
import static org.djlx.collectives.CaseInputs.MOVED;
import static org.djlx.collectives.CaseInputs.inputs;
import static org.djlx.collectives.CaseInputs.seed;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.function.Executable;

/** Messages between two ranks. */
final class PointToPointCases {

    private PointToPointCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("sendRecv", PointToPointCases::sendRecv);
        cases.put("sendRecvStrided", PointToPointCases::sendRecvStrided);
        cases.put("tags", PointToPointCases::tags);
        cases.put("orderOfMessages", PointToPointCases::orderOfMessages);
        cases.put("emptyMessages", PointToPointCases::emptyMessages);
        cases.put("anySource", PointToPointCases::anySource);
        cases.put("batch", PointToPointCases::batch);
        cases.put("inTurn", PointToPointCases::inTurn);
        cases.put("besideCollectives", PointToPointCases::besideCollectives);
        cases.put("differentPeers", PointToPointCases::differentPeers);
        cases.put("messageMisfits", PointToPointCases::messageMisfits);
        cases.put("messageTimeouts", PointToPointCases::messageTimeouts);
        cases.put("wrongMessages", PointToPointCases::wrongMessages);
        return cases;
    }

    private static NDArray number(NDManager manager, double value) {
        return TestArrays.of(manager, ScalarType.FLOAT64, new Shape(1), value);
    }

    private static double received(Work work) {
        work.await();
        return TestArrays.values(work.result().get(0))[0];
    }

    private static void sendRecv(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        if (n == 1) {
            return;
        }
        int next = (group.rank() + 1) % n;
        int previous = (group.rank() + n - 1) % n;
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                Shape shape = new Shape(count);
                NDArray tensor = TestArrays.random(manager, type, shape, seed(group.rank(), 1));
                NDArray output = Torch.empty(manager, shape, type);
                Work sent = group.send(tensor, next, 0);
                Work received = group.recv(output, previous, 0);
                received.await();
                sent.await(Duration.ofMinutes(1));
                assertEquals(previous, received.sourceRank());
                assertThrows(IllegalStateException.class, sent::sourceRank);
                assertArrayEquals(
                        TestArrays.values(
                                TestArrays.random(manager, type, shape, seed(previous, 1))),
                        TestArrays.values(output));
            }
        }
    }

    private static void sendRecvStrided(ProcessGroup group, NDManager manager) {
        ScalarType type = ScalarType.FLOAT32;
        Shape shape = new Shape(300, 200);
        if (group.worldSize() == 1 || group.rank() > 1) {
            return;
        }
        NDArray tensor = TestArrays.randomStrided(manager, type, shape, seed(group.rank(), 2));
        if (group.rank() == 0) {
            group.send(tensor, 1, 3).await();
        } else {
            group.recv(tensor, 0, 3).await();
        }
        assertArrayEquals(inputs(group, manager, type, shape, 2)[0], TestArrays.values(tensor));
    }

    /** Many messages at once, asked for in another order: more than the mailbox holds. */
    private static void tags(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1 || group.rank() > 1) {
            return;
        }
        int messages = 100;
        if (group.rank() == 0) {
            List<Work> works = new ArrayList<>();
            for (int tag = 0; tag < messages; tag++) {
                works.add(group.send(number(manager, tag), 1, tag));
            }
            works.forEach(Work::await);
        } else {
            for (int tag = messages - 1; tag >= 0; tag--) {
                assertEquals(tag, received(group.recv(number(manager, -1), 0, tag)));
            }
        }
    }

    private static void orderOfMessages(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1 || group.rank() > 1) {
            return;
        }
        List<Work> works = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            NDArray tensor = number(manager, group.rank() == 0 ? i : -1);
            works.add(group.rank() == 0 ? group.send(tensor, 1, 5) : group.recv(tensor, 0, 5));
        }
        for (int i = 0; i < works.size(); i++) {
            assertEquals(i, received(works.get(i)));
        }
    }

    /** They end at the receiver when they are accepted: the letters that say so must not stay. */
    private static void emptyMessages(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1 || group.rank() > 1) {
            return;
        }
        List<Work> works = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            NDArray tensor = manager.zeros(new Shape(0, 3));
            works.add(group.rank() == 0 ? group.send(tensor, 1, i) : group.recv(tensor, 0, i));
        }
        works.forEach(Work::await);
    }

    private static void anySource(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        if (n == 1) {
            return;
        }
        if (group.rank() > 0) {
            group.send(number(manager, group.rank()), 0, 1).await();
            return;
        }
        NDArray wide = number(manager, 0).broadcast(3);
        assertRejected(() -> group.recvAnySource(wide, 1), "duplicate");
        Set<Integer> sources = new TreeSet<>();
        for (int i = 1; i < n; i++) {
            Work work = group.recvAnySource(number(manager, -1), 1);
            assertEquals(received(work), work.sourceRank());
            sources.add(work.sourceRank());
        }
        assertEquals(n - 1, sources.size());
    }

    private static void batch(ProcessGroup group, NDManager manager) {
        List<P2pOp> ops = new ArrayList<>();
        int big = 40_000;
        for (int peer = 0; peer < group.worldSize(); peer++) {
            if (peer != group.rank()) {
                NDArray sent =
                        TestArrays.random(
                                manager,
                                ScalarType.FLOAT32,
                                new Shape(big),
                                10 * group.rank() + peer);
                ops.add(P2pOp.send(sent, peer, 2));
                ops.add(P2pOp.recv(manager.zeros(new Shape(big)), peer, 2));
            }
        }
        List<Work> works = ops.isEmpty() ? List.of() : group.batchIsendIrecv(ops); // one rank
        works.forEach(Work::await);
        for (int i = 1; i < ops.size(); i += 2) {
            NDArray sent =
                    TestArrays.random(
                            manager,
                            ScalarType.FLOAT32,
                            new Shape(big),
                            10 * ops.get(i).peer() + group.rank());
            assertArrayEquals(TestArrays.values(sent), TestArrays.values(ops.get(i).tensor()));
        }
    }

    /**
     * A ring of messages, a batch and sums that no rank waits for before all are issued. Even ranks
     * send first, so this needs neither a message nor a collective to pass another.
     */
    private static void inTurn(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        if (n == 1) {
            return;
        }
        int self = group.rank();
        int next = (self + 1) % n;
        int previous = (self + n - 1) % n;
        int big = 300_000;
        for (int round = 0; round < 3; round++) {
            NDArray sum = manager.full(new Shape(big), (float) self);
            NDArray own = manager.full(new Shape(big), (float) (10 * round + self));
            NDArray ring = manager.zeros(new Shape(big));
            NDArray batched = manager.zeros(new Shape(big));
            List<Work> works = new ArrayList<>();
            works.add(group.allReduce(sum, ReduceOp.SUM));
            if (self % 2 == 0) {
                works.add(group.send(own, next, 0));
                works.add(group.recv(ring, previous, 0));
            } else {
                works.add(group.recv(ring, previous, 0));
                works.add(group.send(own, next, 0));
            }
            works.addAll(
                    group.batchIsendIrecv(
                            List.of(P2pOp.send(own, previous, 1), P2pOp.recv(batched, next, 1))));
            works.add(group.allReduce(sum, ReduceOp.MAX));
            works.forEach(Work::await);
            assertEquals(n * (n - 1) / 2, TestArrays.values(sum)[big - 1]);
            assertEquals(10 * round + previous, TestArrays.values(ring)[big - 1]);
            assertEquals(10 * round + next, TestArrays.values(batched)[big - 1]);
        }
    }

    /** Messages go through while a collective waits, and collectives while a message does. */
    private static void besideCollectives(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        NDArray sum = number(manager, 1);
        if (group.rank() == 0) {
            Work collective = group.allReduce(sum, ReduceOp.SUM);
            assertEquals(7, received(group.recv(number(manager, 0), 1, 0)));
            collective.await();
            Work late = group.recv(number(manager, 0), 1, 0);
            group.barrier().await();
            assertEquals(8, received(late));
        } else {
            if (group.rank() == 1) {
                group.send(number(manager, 7), 0, 0).await();
            }
            group.allReduce(sum, ReduceOp.SUM).await();
            group.barrier().await();
            if (group.rank() == 1) {
                group.send(number(manager, 8), 0, 0).await();
            }
        }
        assertEquals(group.worldSize(), TestArrays.values(sum)[0]);
    }

    /** Rank 1 asks for its message only when rank 2 has got its own, which was sent later. */
    private static void differentPeers(ProcessGroup group, NDManager manager) {
        if (group.worldSize() < 3 || group.rank() > 2) {
            return;
        }
        NDArray big = manager.full(new Shape(200_000), group.rank());
        switch (group.rank()) {
            case 0 -> {
                Work first = group.send(big, 1, 0);
                group.send(big, 2, 0).await();
                first.await();
            }
            case 1 -> {
                group.recv(number(manager, 0), 2, 0).await();
                assertEquals(0, received(group.recv(big, 0, 0)));
            }
            default -> {
                assertEquals(0, received(group.recv(big, 0, 0)));
                group.send(number(manager, 0), 1, 0).await();
            }
        }
    }

    private static void messageMisfits(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1 || group.rank() > 1) {
            return;
        }
        boolean sends = group.rank() == 0;
        NDArray three = manager.ones(new Shape(3));
        NDArray ints = TestArrays.random(manager, ScalarType.INT32, new Shape(3), 1);
        NDArray four = manager.ones(new Shape(2, 2));
        assertMisfit(() -> message(group, sends ? three : four).await(), "(3)", "(2, 2)");
        assertMisfit(() -> message(group, sends ? three : ints).await(), "float32", "int32");
        // The group still works, also for the same tag, and a message may have another shape.
        NDArray flat = manager.zeros(new Shape(4));
        message(group, sends ? four : flat).await();
        assertArrayEquals(new double[] {1, 1, 1, 1}, TestArrays.values(sends ? four : flat));
    }

    private static Work message(ProcessGroup group, NDArray tensor) {
        return group.rank() == 0 ? group.send(tensor, 1, 4) : group.recv(tensor, 0, 4);
    }

    private static void assertMisfit(Executable call, String one, String other) {
        String message = assertThrows(CollectiveMismatchException.class, call).getMessage();
        assertTrue(message.contains("send(") && message.contains("recv("), message);
        assertTrue(message.contains(one) && message.contains(other), message);
        assertTrue(message.contains("tag 4"), message);
    }

    private static void messageTimeouts(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        if (n == 1) {
            return;
        }
        ProcessGroup hasty = group.withTimeout(Duration.ofMillis(30));
        if (group.rank() == 0) {
            // No rank sends before the barrier.
            CollectiveTimeoutException e =
                    assertThrows(
                            CollectiveTimeoutException.class,
                            () -> hasty.recv(number(manager, 0), 1, 0).await());
            assertEquals(List.of(1), e.missingRanks());
            assertTrue(e.getMessage().contains("rank 1 did not send"), e.getMessage());
            CollectiveTimeoutException any =
                    assertThrows(
                            CollectiveTimeoutException.class,
                            () -> hasty.recvAnySource(number(manager, 0), 0).await());
            assertEquals(n - 1, any.missingRanks().size());
            // No rank receives it: it is withdrawn.
            CollectiveTimeoutException unsent =
                    assertThrows(
                            CollectiveTimeoutException.class,
                            () -> hasty.send(number(manager, 1), 1, 0).await());
            assertEquals(List.of(1), unsent.missingRanks());
            group.barrier().await();
            assertEquals(5, received(group.recv(number(manager, 0), 1, 0)));
            group.send(number(manager, 2), 1, 0).await();
        } else {
            group.barrier().await();
            if (group.rank() == 1) {
                group.send(number(manager, 5), 0, 0).await();
                assertEquals(2, received(group.recv(number(manager, 0), 0, 0)));
            }
        }
    }

    private static void wrongMessages(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        NDArray tensor = number(manager, 0);
        assertRejected(() -> group.send(tensor, group.rank(), 0), "is this rank");
        assertRejected(() -> group.recv(tensor, n, 0), "source " + n);
        assertRejected(() -> group.send(null, 0, 0), "null");
        if (n == 1) {
            assertRejected(() -> group.recvAnySource(tensor, 0), "the group has one rank");
            return;
        }
        int other = (group.rank() + 1) % n;
        assertRejected(() -> group.send(tensor, other, -1), "tag");
        assertRejected(() -> new P2pOp(OpType.BROADCAST, tensor, 0, 0), "broadcast");
        // The first is not sent because the second is invalid, and no rank receives it.
        List<P2pOp> half = List.of(P2pOp.send(tensor, other, 0), P2pOp.recv(tensor, -1, 0));
        assertRejected(() -> group.batchIsendIrecv(half), "source -1");
    }

    private static void assertRejected(Executable call, String text) {
        String message = assertThrows(IllegalArgumentException.class, call).getMessage();
        assertTrue(message.contains(text), message);
    }
}
