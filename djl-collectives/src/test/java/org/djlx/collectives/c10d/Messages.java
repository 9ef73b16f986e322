// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import static org.djlx.collectives.c10d.Rank.cpu;
import static org.djlx.collectives.c10d.Rank.least;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.P2pOp;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.collectives.c10d.Expectation.Table;
import org.djlx.collectives.c10d.Rank.Body;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.torch.ScalarType;

/** What PyTorch's tests expect of messages between two ranks, and of barriers. */
final class Messages {

    private static final ScalarType FLOAT = ScalarType.FLOAT32;
    private static final Duration SHORT = Duration.ofMillis(50); // no rank comes
    private static final int ANY = 7; // the tag of messages for any source, and of no other

    private Messages() {}

    static List<Expectation<Body>> rows() {
        Table<Body> gloo = Table.of("test_c10d_gloo.py");
        gloo.agrees(
                "test_send_recv_all_to_all",
                "sends and receives of all pairs complete, each with the sender's rank",
                least(2, Messages::allPairs));
        distributed(gloo.file("distributed_test.py"));
        Table<Body> nccl = gloo.file("test_c10d_ops_nccl.py");
        for (ScalarType type : List.of(FLOAT, ScalarType.COMPLEX64)) {
            nccl.agrees(
                    "test_send_recv" + (type == FLOAT ? "" : "_complex"),
                    "rank 1 gets 10 x 10 from rank 0",
                    least(2, rank -> oneMessage(rank, type)));
        }
        Table<Body> common = gloo.file("test_c10d_common.py");
        common.agrees(
                "test_send_recv",
                "a message to the own rank is refused",
                rank -> rank.refuses(() -> rank.group().send(rank.full(1, 2, 2), rank.r(), 0)));
        barriers(gloo.file("distributed_test.py"));
        return gloo.rows();
    }

    private static void allPairs(Rank rank) {
        List<Work> works = new ArrayList<>();
        List<NDArray> outputs = rank.each(from -> rank.full(-1, 1));
        for (int peer = 0; peer < rank.n(); peer++) {
            if (peer != rank.r()) {
                works.add(rank.group().send(rank.full(rank.r(), 1), peer, 0));
            }
        }
        for (int peer = 0; peer < rank.n(); peer++) {
            if (peer != rank.r()) {
                works.add(rank.group().recv(outputs.get(peer), peer, 0));
            }
        }
        for (Work work : works) {
            work.await(rank.group().timeout());
            assertTrue(work.isCompleted());
        }
        for (int peer = 0; peer < rank.n(); peer++) {
            rank.all(peer == rank.r() ? -1 : peer, outputs.get(peer));
        }
    }

    private static void oneMessage(Rank rank, ScalarType type) {
        Shape shape = new Shape(10, 10);
        if (rank.r() == 0) {
            rank.group().send(rank.full(type, shape, 0.25), 1, 0).await();
        } else if (rank.r() == 1) {
            NDArray received = rank.full(type, shape, -1);
            rank.group().recv(received, 0, 0).await();
            rank.all(0.25, received);
        }
    }

    private static void distributed(Table<Body> table) {
        for (String test : List.of("test_send_recv", "test_send_recv_nccl")) {
            table.agrees(
                    test,
                    "each rank sends a cube to all others in turn",
                    least(2, rank -> inTurn(rank, from -> 0)));
        }
        table.agrees(
                "test_send_recv_with_tag",
                "the tag is the sender's rank",
                least(2, rank -> inTurn(rank, from -> from)));
        table.agrees(
                "test_send_recv_any_source",
                "the work names the rank whose number the tensor holds",
                least(2, Messages::anySource));
        table.agrees(
                "test_isend",
                "rank 0 sends cubes of 10 and its works complete",
                least(2, rank -> fromAndTo(rank, true)));
        table.agrees(
                "test_irecv",
                "rank 0 receives cubes of 10 and its works complete",
                least(2, rank -> fromAndTo(rank, false)));
        for (String test : List.of("test_batch_isend_irecv_gloo", "test_batch_isend_irecv_nccl")) {
            table.agrees(
                    test,
                    "cubes of different sizes between all pairs",
                    least(2, rank -> batch(rank, 0)));
        }
        table.agrees(
                "test_batch_isend_irecv_gloo_tags",
                "the tag is the sender's rank",
                least(2, rank -> batch(rank, 1)));
        table.agrees(
                "test_batch_isend_irecv_ring_exchange_nccl",
                "a ring of sends and receives",
                least(
                        2,
                        rank -> {
                            NDArray sent = rank.cube(FLOAT, rank.n(), rank.r());
                            NDArray received = rank.cube(FLOAT, rank.n(), -1);
                            run(
                                    rank,
                                    List.of(
                                            P2pOp.send(sent, rank.next(), 0),
                                            P2pOp.recv(received, rank.previous(), 0)));
                            rank.all(rank.previous(), received);
                        }));
        table.agrees(
                "test_batch_isend_irecv_no_rank_zero_nccl",
                "ranks 1 and 2 exchange, rank 0 does nothing",
                least(
                        3,
                        rank -> {
                            if (rank.r() != 1 && rank.r() != 2) {
                                return;
                            }
                            int peer = 3 - rank.r();
                            NDArray received = rank.cube(FLOAT, peer + 1, -1);
                            NDArray sent = rank.cube(FLOAT, rank.r() + 1, rank.r() + 1);
                            run(
                                    rank,
                                    List.of(
                                            P2pOp.recv(received, peer, 0),
                                            P2pOp.send(sent, peer, 0)));
                            rank.all(peer + 1, received);
                        }));
        table.differs(
                "test_batch_isend_irecv_self_nccl",
                "a batch sends to the own rank and receives from it",
                "refused: the peer is this rank",
                "copy the tensor; gloo and MPI refuse it too",
                rank -> {
                    NDArray tensor = rank.full(1, 1);
                    List<P2pOp> own =
                            List.of(
                                    P2pOp.recv(tensor, rank.r(), 0),
                                    P2pOp.send(tensor, rank.r(), 0));
                    rank.refuses(() -> rank.group().batchIsendIrecv(own));
                });
        table.agrees(
                "test_batch_isend_irecv_op_err",
                "an op that is neither send nor receive is refused",
                rank -> rank.refuses(() -> new P2pOp(OpType.BROADCAST, rank.full(1, 1), 1, 0)));
        table.agrees(
                "test_batch_isend_irecv_op_list_err",
                "a list without messages is refused",
                rank -> {
                    rank.refuses(() -> rank.group().batchIsendIrecv(List.of()));
                    rank.refuses(() -> rank.group().batchIsendIrecv(null));
                });
        table.differs(
                "test_batch_isend_irecv_mixed_backend_err",
                "messages of two groups in one batch are refused",
                "a batch cannot name two groups",
                "a message has no group: the batch is a method of one",
                rank -> assertEquals(0, P2pOp.send(rank.full(1, 1), 0, 0).peer()));
    }

    private static void inTurn(Rank rank, IntUnaryOperator tag) {
        NDArray tensor = rank.cube(FLOAT, rank.r() + 1, rank.r() + 1);
        for (int from = 0; from < rank.n(); from++) {
            if (from == rank.r()) {
                for (int to = 0; to < rank.n(); to++) {
                    if (to != from) {
                        rank.group().send(tensor, to, tag.applyAsInt(from)).await();
                    }
                }
            } else {
                NDArray output = rank.cube(FLOAT, from + 1, -1);
                rank.group().recv(output, from, tag.applyAsInt(from)).await();
                rank.all(from + 1, output);
            }
        }
    }

    private static void anySource(Rank rank) {
        if (rank.group().device().isGpu()) { // As NCCL in PyTorch's test.
            NDArray any = rank.full(0, 1);
            assertThrows(
                    UnsupportedOperationException.class, () -> rank.group().recvAnySource(any, 0));
            return;
        }
        for (int to = 0; to < rank.n(); to++) {
            if (to != rank.r()) {
                rank.group().send(rank.cube(FLOAT, 10, rank.r()), to, ANY).await();
                continue;
            }
            for (int i = 1; i < rank.n(); i++) {
                NDArray output = rank.cube(FLOAT, 10, -1);
                Work work = rank.group().recvAnySource(output, ANY);
                work.await();
                rank.all(work.sourceRank(), output);
            }
        }
    }

    private static void fromAndTo(Rank rank, boolean zeroSends) {
        boolean sends = (rank.r() == 0) == zeroSends;
        List<Work> works = new ArrayList<>();
        for (int other = 1; other < rank.n(); other++) {
            if (rank.r() == 0 || rank.r() == other) {
                int peer = rank.r() == 0 ? other : 0;
                NDArray tensor = rank.cube(FLOAT, other, sends ? 10 : -1);
                works.add(
                        sends
                                ? rank.group().send(tensor, peer, 0)
                                : rank.group().recv(tensor, peer, 0));
            }
        }
        for (Work work : works) {
            work.await(rank.group().timeout());
            assertTrue(work.isCompleted());
            if (!sends) {
                rank.all(10, work.result().get(0));
            }
        }
    }

    private static void run(Rank rank, List<P2pOp> ops) {
        rank.group().batchIsendIrecv(ops).forEach(Work::await);
    }

    private static void batch(Rank rank, int tags) {
        List<P2pOp> ops = new ArrayList<>();
        for (int peer = 0; peer < rank.n(); peer++) {
            if (peer != rank.r()) {
                NDArray sent = rank.cube(FLOAT, rank.r() + 1, rank.r() + 1);
                ops.add(P2pOp.recv(rank.cube(FLOAT, peer + 1, -1), peer, tags * peer));
                ops.add(P2pOp.send(sent, peer, tags * rank.r()));
            }
        }
        run(rank, ops);
        for (int i = 0; i < ops.size(); i += 2) {
            rank.all(ops.get(i).peer() + 1, ops.get(i).tensor());
        }
    }

    private static void barriers(Table<Body> table) {
        for (Scope scope : Scope.values()) {
            table.agrees(
                    "test_barrier" + scope.infix(),
                    "no rank leaves a barrier before each rank has come",
                    scope.on(
                            rank -> {
                                for (int late = 0; late < rank.n(); late++) {
                                    NDArray time = rank.full(ScalarType.INT64, new Shape(1), 0);
                                    rank.group().barrier().await(rank.group().timeout());
                                    rank.group().broadcast(time, late).await();
                                    rank.all(0, time);
                                }
                            }));
            table.agrees(
                    "test_barrier_timeout" + (scope == Scope.GLOBAL ? "_global" : scope.infix()),
                    "a barrier that rank 0 alone calls times out",
                    cpu(scope.on(Messages::barrierTimeout)));
        }
        table.agrees(
                "test_monitored_barrier_gloo",
                "passes if all ranks call it",
                rank -> rank.group().monitoredBarrier(Duration.ofSeconds(60), false));
        table.agrees(
                "test_monitored_barrier_gloo",
                "rank 1 is missing: rank 0 names it, and the others throw too",
                cpu(least(2, Messages::missingOne)));
        table.differs(
                "test_monitored_barrier_gloo_rank_0_timeout",
                "with a timeout of 0 rank 0 times out",
                "refused",
                "a timeout is positive",
                rank -> rank.refuses(() -> rank.group().monitoredBarrier(Duration.ZERO, false)));
        table.agrees(
                "test_monitored_barrier_failure_order",
                "ranks 0 and 1 throw, and name rank 2 of those that are missing",
                cpu(least(3, Messages::missingFromTwo)));
        table.agrees(
                "test_monitored_barrier_wait_all_ranks",
                "all missing ranks are named",
                cpu(least(3, rank -> missing(rank, true))));
        table.agrees(
                "test_monitored_barrier_gloo",
                "passes with waitAllRanks if all ranks call it",
                rank -> rank.group().monitoredBarrier(Duration.ofSeconds(60), true));
        table.agrees(
                "test_monitored_barrier_gloo_subgroup",
                "rank 0 of a group of two names rank 1",
                cpu(
                        least(
                                2,
                                rank -> {
                                    ProcessGroup two = rank.group().newGroup(List.of(0, 1));
                                    if (two.rank() == 0) {
                                        assertMissing(two, false, List.of(1));
                                    }
                                    rank.group().barrier().await();
                                    two.destroy();
                                })));
    }

    private static void barrierTimeout(Rank rank) {
        onItsOwn(
                rank,
                own -> {
                    if (own.rank() == 0) {
                        Work work = own.withTimeout(SHORT).barrier();
                        assertThrows(CollectiveTimeoutException.class, work::await);
                    }
                });
    }

    /** Runs a body on a group of the same ranks, which afterwards are not at the same call. */
    private static void onItsOwn(Rank rank, Consumer<ProcessGroup> body) {
        ProcessGroup own = rank.group().split(0, rank.r());
        body.accept(own);
        rank.group().barrier().await();
        own.destroy();
    }

    private static void assertMissing(ProcessGroup group, boolean all, List<Integer> missing) {
        CollectiveTimeoutException e =
                assertThrows(
                        CollectiveTimeoutException.class, () -> group.monitoredBarrier(SHORT, all));
        assertEquals(missing, e.missingRanks());
    }

    /** Only rank 0 calls. */
    private static void missing(Rank rank, boolean all) {
        onItsOwn(
                rank,
                own -> {
                    if (own.rank() == 0) {
                        int end = all ? rank.n() : 2;
                        assertMissing(own, all, IntStream.range(1, end).boxed().toList());
                    }
                });
    }

    /** All ranks but rank 1 call. */
    private static void missingOne(Rank rank) {
        onItsOwn(
                rank,
                own -> {
                    if (own.rank() == 0) {
                        assertMissing(own, false, List.of(1));
                    } else if (own.rank() > 1) {
                        assertThrows(
                                CollectiveTimeoutException.class,
                                () -> own.monitoredBarrier(SHORT, false));
                    }
                });
    }

    /** Ranks 0 and 1 call; the others have left, which ends the wait for them at once. */
    private static void missingFromTwo(Rank rank) {
        onItsOwn(
                rank,
                own -> {
                    if (own.rank() > 1) {
                        own.destroy();
                        return;
                    }
                    CollectiveTimeoutException e =
                            assertThrows(
                                    CollectiveTimeoutException.class,
                                    () -> own.monitoredBarrier(Duration.ofSeconds(60), false));
                    assertEquals(List.of(2), e.missingRanks());
                });
    }
}
