// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.nativeops.cuda.CudaStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The order of launches, on fake GPUs that run one kernel at a time. */
@Timeout(120)
class GpuTurnsTest {

    private static final Duration LONG = Duration.ofSeconds(20);
    private static final Duration SHORT = Duration.ofMillis(100);

    private final GpuTurns turns = new GpuTurns();

    private List<GpuTurns.Member> join(String name, String... gpus) {
        return IntStream.range(0, gpus.length)
                .mapToObj(rank -> turns.join(name, name, rank, List.of(gpus)))
                .toList();
    }

    private static void launch(GpuTurns.Member member) {
        long number = member.begin();
        member.await(number, "operator", SHORT);
        member.launched(number, stream -> {});
    }

    @Test
    void singleGroupLogsNoLaunches() {
        List<GpuTurns.Member> x = join("X", "a", "b");
        List<GpuTurns.Member> other = join("other", "c", "d");
        launch(x.get(0));
        launch(x.get(0));
        launch(other.get(1));
        assertFalse(x.get(0).isShared());
        assertEquals(0, turns.logged());
        assertEquals(1, x.get(0).ranksOnGpu());
    }

    @Test
    void theSecondGroupWaitsForTheFirst() {
        List<GpuTurns.Member> x = join("X", "a", "b");
        List<GpuTurns.Member> y = join("Y", "a", "b");
        assertEquals(2, x.get(0).ranksOnGpu());
        assertFalse(x.get(0).sharesGpu());
        launch(x.get(0));
        CollectiveTimeoutException late =
                assertThrows(CollectiveTimeoutException.class, () -> launch(y.get(1)));
        assertTrue(
                late.getMessage().contains("rank 1 of that group has not called"),
                late.getMessage());
        assertTrue(late.getMessage().contains("on GPU b"), late.getMessage());
        launch(x.get(1));
        y.get(1).await(1, "again", SHORT);
        y.get(1).passed(1);
        y.get(0).passed(y.get(0).begin());
        assertEquals(0, turns.logged());
    }

    /** A stream waits for the other groups' last launches on its GPU, also those before it came. */
    @Test
    void streamsFollowEarlierLaunches() {
        List<GpuTurns.Member> x = join("X", "a", "a");
        List<GpuTurns.Launched> ends = List.of(stream -> {}, stream -> {});
        for (int rank = 0; rank < 2; rank++) {
            GpuTurns.Member member = x.get(rank);
            long number = member.begin();
            assertEquals(List.of(), member.await(number, "X", SHORT));
            member.launched(number, ends.get(rank));
        }
        GpuTurns.Member y = join("Y", "a", "b").get(0);
        assertEquals(ends, y.await(y.begin(), "Y", SHORT));
        assertEquals(3, y.ranksOnGpu());
        assertTrue(y.sharesGpu()); // Two ranks of X do.
    }

    /** A call that one rank has launched precedes those of a group that joins later. */
    @Test
    void callsUnderWayPrecedeANewGroup() {
        List<GpuTurns.Member> x = join("X", "a", "b");
        launch(x.get(0));
        launch(x.get(1));
        launch(x.get(0));
        List<GpuTurns.Member> y = join("Y", "a", "b");
        assertEquals(1, turns.logged());
        launch(y.get(0));
        assertThrows(CollectiveTimeoutException.class, () -> launch(y.get(1)));
        x.get(1).passed(x.get(1).begin()); // Without a launch: a rank may take another path.
        y.get(1).await(1, "again", SHORT);
    }

    /** Calls of a group whose members have all stopped, but not left, stay out of the log. */
    @Test
    void stoppedGroupLogsNoLaunches() {
        List<GpuTurns.Member> x = join("X", "a", "b");
        launch(x.get(0));
        x.forEach(GpuTurns.Member::stop);
        launch(join("Y", "a", "b").get(0));
        assertEquals(1, turns.logged());
    }

    /** A rank that needs no turn for a call does not change the order of later calls. */
    @Test
    void ranksMayTakeDifferentPaths() {
        List<GpuTurns.Member> x = join("X", "a", "b");
        List<GpuTurns.Member> y = join("Y", "a", "b");
        GpuTurns.Member first = x.get(0);
        first.passed(first.begin());
        first.await(first.begin(), "X 2", SHORT);
        first.launched(2, stream -> {});
        launch(x.get(1));
        assertThrows(CollectiveTimeoutException.class, () -> launch(y.get(1)));
        launch(x.get(1));
        y.get(1).await(1, "again", SHORT);
    }

    /** No host waits for a rank that has stopped, but streams wait for its last launch. */
    @Test
    void streamsWaitForTheLastLaunchOfAStoppedRank() {
        List<GpuTurns.Member> x = join("X", "a", "b");
        GpuTurns.Member y = join("Y", "a", "b").get(1);
        GpuTurns.Launched end = stream -> {};
        x.get(1).await(x.get(1).begin(), "X 1", SHORT);
        x.get(1).launched(1, end);
        x.get(0).await(x.get(0).begin(), "X 1", SHORT);
        x.get(0).launched(1, stream -> {});
        x.get(0).await(x.get(0).begin(), "X 2", SHORT);
        x.get(1).stop();
        assertEquals(List.of(end), y.await(y.begin(), "Y 1", SHORT));
        assertThrows(CollectiveException.class, () -> x.get(1).await(x.get(1).begin(), "X", SHORT));
        y.launched(1, stream -> {});
        x.get(1).leave();
        assertEquals(List.of(), y.await(y.begin(), "Y 2", SHORT));
    }

    @Test
    void departedRankBlocksNobody() throws Exception {
        List<GpuTurns.Member> x = join("X", "a", "b");
        List<GpuTurns.Member> y = join("Y", "a", "b");
        launch(x.get(0));
        ExecutorService executor = Executors.newSingleThreadExecutor();
        try {
            GpuTurns.Member waiting = y.get(1);
            Future<?> turn = executor.submit(() -> waiting.await(waiting.begin(), "Y", LONG));
            x.get(1).leave();
            turn.get(30, TimeUnit.SECONDS);
            waiting.passed(1);
            GpuTurns.Member leaving = join("Z", "a", "b").get(1);
            y.get(0).await(y.get(0).begin(), "Y", SHORT);
            waiting.await(waiting.begin(), "Y 2", SHORT);
            Future<?> ended = executor.submit(() -> leaving.await(leaving.begin(), "Z", LONG));
            leaving.leave();
            leaving.leave();
            ExecutionException failure =
                    assertThrows(ExecutionException.class, () -> ended.get(30, TimeUnit.SECONDS));
            assertEquals(CollectiveException.class, failure.getCause().getClass());
        } finally {
            executor.shutdownNow();
        }
        x.get(0).leave();
        y.forEach(GpuTurns.Member::leave);
        assertEquals(0, turns.logged());
    }

    @Test
    void aThreadHasOneTurn() {
        GpuTurns.Member x = join("X", "a", "b").get(0);
        GpuTurns.Member y = join("Y", "a", "b").get(0);
        x.await(x.begin(), "X 1 of group 'X'", SHORT);
        IllegalStateException nested =
                assertThrows(IllegalStateException.class, () -> y.await(y.begin(), "Y 1", SHORT));
        assertTrue(nested.getMessage().contains("CUDA graph"), nested.getMessage());
    }

    /** Groups whose ranks are threads with random pauses, on GPUs that run a kernel at a time. */
    private static final class Machine {

        final Map<String, Semaphore> gpus = new ConcurrentHashMap<>();
        final Map<String, CountDownLatch> meetings = new ConcurrentHashMap<>();
        final ExecutorService threads = Executors.newCachedThreadPool();

        /** A kernel: fills its GPU until its peers run. */
        void run(String meeting, int ranks, String gpu, CountDownLatch aborted)
                throws InterruptedException {
            Semaphore free = gpus.computeIfAbsent(gpu, key -> new Semaphore(1));
            assertTrue(free.tryAcquire(10, TimeUnit.SECONDS), () -> "deadlock before " + meeting);
            try {
                CountDownLatch met =
                        meetings.computeIfAbsent(meeting, key -> new CountDownLatch(ranks));
                met.countDown();
                long end = System.nanoTime() + 10_000_000_000L;
                while (met.getCount() > 0 && aborted.getCount() > 0) {
                    assertTrue(System.nanoTime() < end, () -> "deadlock in " + meeting);
                    met.await(1, TimeUnit.MILLISECONDS);
                }
            } finally {
                free.release();
            }
        }
    }

    private final class RandomGroup {

        final String name;
        final List<String> on;
        final int calls;
        final int abortAt; // -1: never
        final CountDownLatch aborted = new CountDownLatch(1);
        final List<GpuTurns.Member> members = new ArrayList<>();

        RandomGroup(String name, List<String> on, int calls, int abortAt) {
            this.name = name;
            this.on = on;
            this.calls = calls;
            this.abortAt = abortAt;
        }

        void abort() {
            aborted.countDown();
            members.forEach(GpuTurns.Member::leave);
        }

        /** Makes a rank's calls. */
        Void run(Machine machine, int rank, Random random) throws Exception {
            ExecutorService stream = Executors.newSingleThreadExecutor();
            List<Future<?>> kernels = new ArrayList<>();
            GpuTurns.Member member = members.get(rank);
            try {
                for (int call = 0; call < calls && aborted.getCount() > 0; call++) {
                    pause(random);
                    if (call == abortAt && rank == 0) {
                        abort();
                        break;
                    }
                    long number = member.begin();
                    if (number % 3 == 0 && (rank + number) % 2 == 0) {
                        member.passed(number);
                        machine.meetings
                                .computeIfAbsent(
                                        name + number, key -> new CountDownLatch(on.size()))
                                .countDown();
                        continue;
                    }
                    List<GpuTurns.Launched> before;
                    try {
                        before = member.await(number, name + number, LONG);
                    } catch (CollectiveException e) {
                        assertEquals(0, aborted.getCount(), e::getMessage);
                        break;
                    }
                    kernels.add(launch(machine, stream, member, number, before));
                }
                for (Future<?> kernel : kernels) {
                    kernel.get(60, TimeUnit.SECONDS);
                }
            } finally {
                stream.shutdownNow();
            }
            return null;
        }

        private Future<?> launch(
                Machine machine,
                ExecutorService stream,
                GpuTurns.Member member,
                long number,
                List<GpuTurns.Launched> before) {
            CountDownLatch ended = new CountDownLatch(1);
            int rank = members.indexOf(member);
            Callable<Void> kernel =
                    () -> {
                        try {
                            before.forEach(launched -> launched.order(null));
                            machine.run(name + number, on.size(), on.get(rank), aborted);
                        } finally {
                            ended.countDown();
                        }
                        return null;
                    };
            Future<?> enqueued = stream.submit(kernel);
            member.launched(number, (CudaStream other) -> awaitEnd(ended));
            return enqueued;
        }
    }

    private static void awaitEnd(CountDownLatch ended) {
        try {
            assertTrue(ended.await(60, TimeUnit.SECONDS));
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    private static void pause(Random random) throws InterruptedException {
        if (random.nextInt(4) == 0) {
            TimeUnit.MICROSECONDS.sleep(random.nextInt(500));
        }
    }

    /** Groups of 2 to 4 ranks on some of 4 GPUs join, call, abort and leave at random. */
    @ParameterizedTest
    @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
    void randomGroupsDoNotDeadlock(long seed) throws Exception {
        Random random = new Random(seed);
        Machine machine = new Machine();
        try {
            List<Future<?>> ranks = new ArrayList<>();
            List<RandomGroup> groups = new ArrayList<>();
            for (int i = 0; i < 6; i++) {
                List<String> on =
                        random.ints(0, 4)
                                .distinct()
                                .limit(2 + random.nextInt(3))
                                .mapToObj(gpu -> "gpu" + gpu)
                                .toList();
                int calls = 20 + random.nextInt(40);
                RandomGroup group =
                        new RandomGroup(
                                "group" + i + " call ",
                                on,
                                calls,
                                i % 3 == 2 ? random.nextInt(calls) : -1);
                groups.add(group);
                for (int rank = 0; rank < on.size(); rank++) {
                    group.members.add(turns.join(group.name, group.name, rank, on));
                }
                for (int rank = 0; rank < on.size(); rank++) {
                    int current = rank;
                    Random own = new Random(random.nextLong());
                    ranks.add(machine.threads.submit(() -> group.run(machine, current, own)));
                }
                TimeUnit.MICROSECONDS.sleep(random.nextInt(3000));
            }
            for (Future<?> rank : ranks) {
                rank.get(100, TimeUnit.SECONDS);
            }
            groups.forEach(RandomGroup::abort);
            assertEquals(0, turns.logged());
        } finally {
            machine.threads.shutdownNow();
        }
    }
}
