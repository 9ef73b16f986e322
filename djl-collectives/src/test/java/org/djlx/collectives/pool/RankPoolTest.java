// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

@Timeout(60)
class RankPoolTest {

    private final AtomicInteger open = new AtomicInteger();

    /** The requests of these pools. */
    private interface Task {
        Object run(State state) throws Exception;
    }

    /** The worker of these pools. */
    private final class State implements RankWorker<Task, Object> {

        final ProcessGroup group;
        final NDManager manager = NDManager.newBaseManager();
        final Thread thread = Thread.currentThread();
        final List<Integer> tasks = new ArrayList<>();

        State(ProcessGroup group) {
            this.group = group;
            open.incrementAndGet();
        }

        @Override
        public Object serve(Task task) throws Exception {
            return task.run(this);
        }

        @Override
        public void close() {
            assertSame(thread, Thread.currentThread());
            manager.close();
            open.decrementAndGet();
        }
    }

    private RankPool<Task, Object> pool(int ranks) {
        return RankPool.start("pool", ProcessGroups.local(ranks), State::new);
    }

    private static Object sumOfRanks(State state) {
        assertSame(state.thread, Thread.currentThread());
        assertFalse(JniUtils.isGradMode());
        try (NDArray rank = state.manager.create(new float[] {state.group.rank()})) {
            state.group.allReduce(rank, ReduceOp.SUM).await();
            return rank.getFloat();
        }
    }

    @Test
    void refusesGroupsThatAreNotAllRanks() {
        List<ProcessGroup> all = ProcessGroups.local(2);
        try {
            for (List<ProcessGroup> wrong :
                    List.of(
                            all.subList(1, 2),
                            List.of(all.get(0), all.get(0)),
                            List.of(all.get(0), all.get(1), all.get(1)))) {
                IllegalArgumentException e =
                        assertThrows(
                                IllegalArgumentException.class,
                                () -> RankPool.start("pool", wrong, State::new));
                assertTrue(
                        e.getMessage().contains("each of the 2 ranks exactly once"),
                        e.getMessage());
            }
            assertEquals(0, open.get());
        } finally {
            all.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void runsTasksOnAllRanksInOneOrder() throws Exception {
        int callers = 8;
        int tasks = 25;
        List<List<Integer>> orders = Collections.synchronizedList(new ArrayList<>());
        try (RankPool<Task, Object> pool = pool(4)) {
            assertEquals(4, pool.size());
            List<Thread> threads =
                    IntStream.range(0, callers)
                            .mapToObj(caller -> new Thread(() -> submitMany(pool, caller, tasks)))
                            .toList();
            threads.forEach(Thread::start);
            for (Thread thread : threads) {
                thread.join();
            }
            pool.submit(state -> orders.add(List.copyOf(state.tasks))).get();
            assertEquals(4, orders.size());
            assertEquals(4, open.get());
        }
        assertEquals(0, open.get());
        assertEquals(callers * tasks, orders.get(0).size());
        orders.forEach(order -> assertEquals(orders.get(0), order));
    }

    private static void submitMany(RankPool<Task, Object> pool, int caller, int tasks) {
        for (int task = 0; task < tasks; task++) {
            int id = 1000 * caller + task;
            Object sum =
                    pool.submit(
                                    state -> {
                                        state.tasks.add(id);
                                        return sumOfRanks(state);
                                    })
                            .join();
            assertEquals(6f, sum);
        }
    }

    @Test
    void failsPendingWorkWithTheReason() throws Exception {
        CountDownLatch go = new CountDownLatch(1);
        try (RankPool<Task, Object> pool = pool(2)) {
            CompletableFuture<Object> bad =
                    pool.submit(
                            state -> {
                                go.await();
                                if (state.group.rank() == 1) {
                                    throw new IllegalStateException("out of luck");
                                }
                                return sumOfRanks(state);
                            });
            List<CompletableFuture<Object>> pending = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                pending.add(pool.submit(RankPoolTest::sumOfRanks));
            }
            assertTrue(pool.failure().isEmpty());
            go.countDown();
            pending.add(bad);
            for (CompletableFuture<Object> future : pending) {
                Throwable cause = assertThrows(ExecutionException.class, future::get).getCause();
                assertSame(pool.failure().orElseThrow(), cause);
                assertEquals("out of luck", cause.getCause().getMessage());
                assertTrue(cause.getMessage().startsWith("pool: rank 1 of 2 failed"));
            }
            CompletableFuture<Object> late = pool.submit(RankPoolTest::sumOfRanks);
            assertTrue(late.isCompletedExceptionally());
            Throwable cause = assertThrows(ExecutionException.class, late::get).getCause();
            assertSame(pool.failure().orElseThrow(), cause.getCause());
            assertTrue(cause.getMessage().startsWith("pool failed before this request"));
        }
        assertEquals(0, open.get());
    }

    @Test
    void failsWithAnErrorToo() {
        try (RankPool<Task, Object> pool = pool(2)) {
            CompletableFuture<Object> bad =
                    pool.submit(
                            state -> {
                                throw new OutOfMemoryError("a test's");
                            });
            Throwable cause = assertThrows(ExecutionException.class, bad::get).getCause();
            assertTrue(cause.getCause() instanceof OutOfMemoryError);
        }
        assertEquals(0, open.get());
    }

    private static final class Mute extends RuntimeException {

        private static final long serialVersionUID = 1;

        Mute(Throwable thrown) {
            super("says nothing", thrown);
        }

        @Override
        public String toString() {
            if (getCause() instanceof Error e) {
                throw e;
            }
            throw (RuntimeException) getCause();
        }
    }

    private static List<Throwable> whatToStringThrows() {
        return List.of(
                new UnsupportedOperationException("a test's"),
                new OutOfMemoryError("a test's"),
                new AssertionError("a test's"));
    }

    @ParameterizedTest
    @MethodSource("whatToStringThrows")
    void failsWithAnExceptionWhoseMessageThrows(Throwable thrown) {
        try (RankPool<Task, Object> pool = pool(2)) {
            CompletableFuture<Object> bad =
                    pool.submit(
                            state -> {
                                throw new Mute(thrown);
                            });
            Throwable cause =
                    assertThrows(ExecutionException.class, () -> bad.get(20, TimeUnit.SECONDS))
                            .getCause();
            assertTrue(cause.getMessage().contains("Mute"), cause.getMessage());
        }
        assertEquals(0, open.get());
    }

    @ParameterizedTest
    @MethodSource("whatToStringThrows")
    void closesAllWorkersIfOneFailsWithoutText(Throwable thrown) {
        RankPool<Task, Object> pool =
                RankPool.start(
                        "pool",
                        ProcessGroups.local(2),
                        group ->
                                new RankWorker<>() {
                                    @Override
                                    public Object serve(Task task) {
                                        return null;
                                    }

                                    @Override
                                    public void close() {
                                        open.incrementAndGet();
                                        throw new Mute(thrown);
                                    }
                                });
        pool.close();
        assertEquals(2, open.get());
    }

    @Test
    void closesCreatedWorkersIfARankCannotStart() {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        CollectiveException failure =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                RankPool.start(
                                        "pool",
                                        groups,
                                        group -> {
                                            if (group.rank() == 2) {
                                                throw new IllegalArgumentException("no weights");
                                            }
                                            return new State(group);
                                        }));
        assertEquals(0, open.get());
        assertTrue(failure.getMessage().contains("rank 2 of 3"), failure.getMessage());
        assertTrue(failure.getMessage().contains("no weights"), failure.getMessage());
    }

    @Test
    void closeFinishesSubmittedRequests() throws Exception {
        RankPool<Task, Object> pool = pool(2);
        CountDownLatch begun = new CountDownLatch(2);
        CompletableFuture<Object> last =
                pool.submit(
                        state -> {
                            begun.countDown();
                            TimeUnit.MILLISECONDS.sleep(50);
                            return sumOfRanks(state);
                        });
        begun.await();
        pool.close();
        assertEquals(1f, last.get());
        assertEquals(0, open.get());
        pool.close();
        assertThrows(IllegalStateException.class, () -> pool.submit(RankPoolTest::sumOfRanks));
    }

    @Test
    void refusesToBeClosedByARank() {
        RankPool<Task, Object> pool = pool(1);
        CompletableFuture<Object> closing =
                pool.submit(
                        state -> {
                            pool.close();
                            return null;
                        });
        Throwable cause = assertThrows(ExecutionException.class, closing::get).getCause();
        assertTrue(cause.getMessage().contains("must not close"), cause.getMessage());
        pool.close();
        assertEquals(0, open.get());
    }

    private static final Task NOT_ENCODED = state -> null;

    private static final RequestCodec<Task> NO_CODEC =
            new RequestCodec<>() {
                @Override
                public byte[] encode(Task task) {
                    return task == NOT_ENCODED ? null : new byte[1];
                }

                @Override
                public Task decode(byte[] bytes) {
                    return RankPoolTest::sumOfRanks;
                }
            };

    /** Has threads join a pool as processes do. */
    private List<RankPool<Task, Object>> join(int ranks) {
        return ProcessGroups.run(
                ProcessGroups.local(ranks),
                group -> RankPool.join("joined", group, NO_CODEC, State::new));
    }

    @Test
    void servesByRanksThatJoin() throws Exception {
        List<RankPool<Task, Object>> pools = join(3);
        assertEquals(3, pools.get(0).size());
        assertFalse(pools.get(0).isFollower());
        assertTrue(pools.get(2).isFollower());
        for (int i = 0; i < 3; i++) {
            assertEquals(3f, pools.get(0).submit(RankPoolTest::sumOfRanks).get());
        }
        assertThrows(
                IllegalStateException.class, () -> pools.get(1).submit(RankPoolTest::sumOfRanks));
        assertThrows(IllegalArgumentException.class, () -> pools.get(0).submit(NOT_ENCODED));
        assertEquals(3f, pools.get(0).submit(RankPoolTest::sumOfRanks).get());
        assertEquals(3, open.get());
        pools.get(0).close();
        for (RankPool<Task, Object> pool : pools) {
            pool.awaitEnd();
            pool.close();
        }
        assertEquals(0, open.get());
    }

    @Test
    void interruptEndsCloseOfAFollowingRank() throws Exception {
        List<RankPool<Task, Object>> pools = join(2);
        CompletableFuture<CollectiveException> told = new CompletableFuture<>();
        CompletableFuture<IllegalStateException> refused = new CompletableFuture<>();
        pools.get(0)
                .whenFailed()
                .thenAccept(
                        failure -> {
                            // This thread would wait for itself.
                            refused.complete(
                                    assertThrows(IllegalStateException.class, pools.get(0)::close));
                            told.complete(failure);
                        });
        Thread closing = new Thread(pools.get(1)::close);
        closing.start();
        closing.interrupt();
        closing.join();
        assertTrue(pools.get(1).failure().orElseThrow().getMessage().contains("interrupted"));
        assertTrue(told.get().getMessage().startsWith("joined: rank 1 of 2 failed"));
        assertTrue(refused.get().getMessage().contains("must not close"));
        assertThrows(CollectiveException.class, pools.get(1)::awaitEnd);
        pools.get(0).close();
        assertEquals(0, open.get());
    }

    @Test
    void joinFailsOnAllRanksIfAWorkerIsNull() {
        List<String> told =
                ProcessGroups.run(
                        ProcessGroups.local(2),
                        group ->
                                assertThrows(
                                                CollectiveException.class,
                                                () ->
                                                        RankPool.join(
                                                                "joined",
                                                                group,
                                                                NO_CODEC,
                                                                own ->
                                                                        own.rank() == 0
                                                                                ? null
                                                                                : new State(own)))
                                        .getMessage());
        assertTrue(told.get(0).contains("joined: rank 0 of 2 failed"), told::toString);
        assertTrue(told.get(0).contains("returned null"), told::toString);
        assertTrue(told.get(1).contains("rank 0 has destroyed the group"), told::toString);
        assertEquals(0, open.get());
    }

    @Test
    void refusesNulls() {
        List<ProcessGroup> groups = ProcessGroups.local(1);
        assertThrows(
                IllegalArgumentException.class, () -> RankPool.start(null, groups, State::new));
        assertThrows(IllegalArgumentException.class, () -> RankPool.start("pool", groups, null));
        assertThrows(
                IllegalArgumentException.class,
                () -> RankPool.start("pool", List.of(), State::new));
        groups.forEach(ProcessGroup::destroy);
        try (RankPool<Task, Object> pool = pool(1)) {
            assertThrows(IllegalArgumentException.class, () -> pool.submit(null));
        }
    }

    @Test
    void nullsAreNamed() {
        List<ProcessGroup> groups = ProcessGroups.local(1);
        ProcessGroups.RankBody<State> maker = State::new;
        try {
            assertThrows(IllegalArgumentException.class, () -> RankPool.start(null, groups, maker));
            assertThrows(IllegalArgumentException.class, () -> RankPool.start("pool", null, maker));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> RankPool.<Task, Object>start("pool", groups, null));
            ProcessGroup one = groups.get(0);
            assertThrows(
                    IllegalArgumentException.class,
                    () -> RankPool.join(null, one, NO_CODEC, maker));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> RankPool.join("pool", null, NO_CODEC, maker));
            assertThrows(
                    IllegalArgumentException.class, () -> RankPool.join("pool", one, null, maker));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> RankPool.<Task, Object>join("pool", one, NO_CODEC, null));
            List<ProcessGroup> holes = Collections.singletonList(null);
            assertThrows(
                    IllegalArgumentException.class, () -> RankPool.start("pool", holes, maker));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        try (RankPool<Task, Object> pool = pool(1)) {
            assertThrows(IllegalArgumentException.class, () -> pool.submit(null));
        }
    }
}
