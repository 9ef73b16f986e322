// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.EngineException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.TestLog;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.HashStore;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The watchdog, with works that no GPU runs. */
@Timeout(60)
class WatchdogTest {

    private final FakeQueue first = new FakeQueue();
    private final FakeQueue second = new FakeQueue();
    private volatile String dead;
    private volatile List<Watchdog.Watched> asked =
            List.of(); // the works of the last call of problem()
    private final Watchdog watchdog = new Watchdog("watchdog-test", new Queues());

    /** The second queue fails with the first, not the other way round. */
    private final class Queues implements Watchdog.Group {

        @Override
        public Collection<? extends Watchdog.Queue> failingWith(Watchdog.Queue queue) {
            return queue == first ? queues() : List.of(queue);
        }

        @Override
        public Collection<? extends Watchdog.Queue> queues() {
            return List.of(first, second);
        }

        @Override
        public Optional<CollectiveException> problem(Collection<? extends Watchdog.Watched> first) {
            asked = List.copyOf(first);
            return Optional.ofNullable(dead).map(CollectiveException::new);
        }
    }

    private static final class FakeQueue implements Watchdog.Queue {

        private final AtomicInteger aborts = new AtomicInteger();
        private volatile List<Integer> missing = List.of();
        private volatile Runnable onAbort = () -> {};
        private volatile String error;
        private CollectiveException broken;

        @Override
        public Optional<String> error() {
            return Optional.ofNullable(error);
        }

        @Override
        public String hint() {
            return "; ask rank 1";
        }

        @Override
        public List<Integer> missing() {
            return missing;
        }

        @Override
        public synchronized boolean breakWith(CollectiveException reason) {
            if (broken != null) {
                return false;
            }
            broken = reason;
            return true;
        }

        @Override
        public void abort() {
            onAbort.run();
            aborts.incrementAndGet();
        }
    }

    private static final class FakeWork implements Watchdog.Watched {

        private final FakeQueue queue;
        private final CountDownLatch completed = new CountDownLatch(1);
        private volatile boolean done; // the GPU has ended it
        private volatile boolean late;
        private final long start = System.nanoTime();
        private volatile boolean lost; // the GPU cannot be queried
        private volatile int abortsBefore;
        private volatile Runnable onComplete = () -> {};
        private volatile CollectiveException failure;
        private final Operation operation;

        FakeWork(FakeQueue queue) {
            this(queue, BackendOptions.DEFAULT_WARN_AFTER);
        }

        FakeWork(FakeQueue queue, Duration warnAfter) {
            this.queue = queue;
            NcclOptions options =
                    NcclOptions.builder()
                            .optTimeout(Duration.ofSeconds(9))
                            .optWarnAfter(warnAfter)
                            .build();
            operation = new GroupContext("g", 0, 2, new HashStore(), options, null).joining();
        }

        @Override
        public boolean poll() {
            if (lost && failure == null) {
                throw new EngineException("CUDA_ERROR_ILLEGAL_ADDRESS");
            }
            if (done && failure == null) {
                completed.countDown();
            }
            return completed.getCount() == 0;
        }

        @Override
        public boolean isDone() {
            return completed.getCount() == 0;
        }

        @Override
        public long elapsedNanos() {
            return late ? Long.MAX_VALUE : System.nanoTime() - start;
        }

        @Override
        public Operation operation() {
            return operation;
        }

        @Override
        public Watchdog.Queue queue() {
            return queue;
        }

        @Override
        public boolean seal(CollectiveException reason) {
            if (failure != null) {
                return false;
            }
            abortsBefore = queue.aborts.get();
            failure = reason;
            return true;
        }

        @Override
        public void complete(boolean quiet) {
            assertTrue(quiet || lost);
            onComplete.run();
            completed.countDown();
        }
    }

    private FakeWork work(FakeQueue queue) {
        FakeWork work = new FakeWork(queue);
        watchdog.add(work);
        return work;
    }

    @AfterEach
    void close() {
        watchdog.close();
    }

    @Test
    void worksCompleteWithoutAWaitingThread() throws InterruptedException {
        FakeWork one = work(first);
        FakeWork two = work(second);
        assertFalse(watchdog.isIdle());
        assertFalse(watchdog.isDone());
        two.done = true;
        two.completed.await();
        assertEquals(1, one.completed.getCount());
        one.done = true;
        one.completed.await();
        assertTrue(watchdog.isIdle());
        assertTrue(watchdog.isDone());
        assertNull(one.failure);
        // It has slept, and works again.
        Thread.sleep(20);
        FakeWork three = work(first);
        three.done = true;
        three.completed.await();
    }

    @Test
    void lateWorkFailsWithAllThatDependOnItsLine() throws InterruptedException {
        FakeWork late = work(first);
        FakeWork sibling = work(first);
        FakeWork dependent = work(second);
        late.late = true;
        for (FakeWork work : List.of(late, sibling, dependent)) {
            work.completed.await();
            assertTrue(work.failure instanceof CollectiveTimeoutException, "" + work.failure);
            assertTrue(work.failure.getMessage().contains("timed out after 9 s; ask rank 1"));
            assertEquals(0, work.abortsBefore); // The work failed before the abort.
            assertEquals(1, work.queue.aborts.get());
        }
    }

    /** Warns once, about the first work of a queue: later works wait for the same reason. */
    @Test
    void longWorkIsLogged() throws InterruptedException {
        try (TestLog log = new TestLog(LongWaits.class)) {
            FakeWork slow = new FakeWork(first, Duration.ofMillis(1));
            watchdog.add(slow);
            FakeWork behind = work(first);
            String message = log.await("init() #0 of group 'g': still waiting for");
            assertTrue(message.contains("for other ranks or its GPU after"), message);
            assertTrue(message.endsWith("times out after 9 s; ask rank 1"), message);
            second.missing = List.of(1, 3);
            FakeWork other = new FakeWork(second, Duration.ofMillis(1));
            watchdog.add(other);
            message = log.await("still waiting for ranks 1, 3 after");
            assertTrue(message.endsWith("times out after 9 s"), message);
            for (FakeWork work : List.of(slow, behind, other)) {
                work.done = true;
                work.completed.await();
            }
            assertEquals(2, log.count("still waiting"));
        }
    }

    @Test
    void queueThatFailsLeavesTheOtherAlone() throws InterruptedException {
        FakeWork good = work(first);
        FakeWork bad = work(second);
        second.error = "remote process exited";
        bad.completed.await();
        assertEquals("remote process exited", bad.failure.getMessage());
        good.done = true;
        good.completed.await();
        assertNull(good.failure);
        assertNull(first.broken);
        assertEquals(0, first.aborts.get());
        assertEquals(1, second.aborts.get());
    }

    @Test
    void aProblemFailsAllWorksWithOneException() throws InterruptedException {
        FakeWork one = work(first);
        FakeWork two = work(second);
        dead = "the process of rank 1 (pid 7) has ended";
        one.completed.await();
        two.completed.await();
        assertEquals(dead, one.failure.getMessage());
        assertEquals(one.failure, two.failure);
    }

    @Test
    void lostGpuFailsTheQueue() throws InterruptedException {
        FakeWork bad = work(first);
        FakeWork sibling = work(first);
        bad.lost = true;
        for (FakeWork work : List.of(sibling, bad)) {
            work.completed.await();
            String message = work.failure.getMessage();
            assertTrue(message.endsWith("failed: CUDA_ERROR_ILLEGAL_ADDRESS"), message);
        }
        assertEquals(1, first.aborts.get());
        // It still watches.
        FakeWork next = work(first);
        next.done = true;
        next.completed.await();
        FakeWork last = new FakeWork(second);
        last.lost = true;
        watchdog.add(last);
        assertTrue(watchdog.isIdle());
        last.completed.await();
    }

    /** As with an all-reduce whose wait timed out: its event completes like any other. */
    @Test
    void queueThatFailsAsItsOnlyWorkEndsBreaks() throws InterruptedException {
        FakeWork work = work(first);
        first.error = "rank 1 did not arrive";
        work.done = true;
        work.completed.await();
        while (first.aborts.get() == 0) {
            Thread.sleep(1);
        }
        assertEquals("rank 1 did not arrive", first.broken.getMessage());
    }

    /** As when a message waits for a stream that waits for a collective. */
    @Test
    void queuesAreAbortedAtTheSameTime() throws InterruptedException {
        CountDownLatch second = new CountDownLatch(1);
        first.onAbort =
                () -> {
                    try {
                        second.await();
                    } catch (InterruptedException e) {
                        throw new AssertionError(e);
                    }
                };
        this.second.onAbort = second::countDown;
        FakeWork late = work(first);
        late.late = true;
        late.completed.await(); // which asserts that the GPU has stopped
        assertEquals(1, first.aborts.get());
    }

    @Test
    void continuationCanCloseTheWatchdog() throws InterruptedException {
        FakeWork late = work(first);
        late.onComplete = watchdog::close;
        late.late = true;
        late.completed.await();
    }

    @Test
    void worksOfAQueueEndInTheirOrder() throws InterruptedException {
        FakeWork one = work(first);
        FakeWork two = work(first);
        FakeWork other = work(second);
        two.done = true;
        other.done = true;
        other.completed.await();
        assertEquals(1, two.completed.getCount()); // It waits for the previous work.
        one.done = true;
        one.completed.await();
        two.completed.await();
    }

    @Test
    void anAlwaysWatchedQueueFindsAProblemWithoutAWork() throws InterruptedException {
        watchdog.watchAlways(first);
        dead = "the process of rank 1 (pid 7) has ended";
        while (first.aborts.get() == 0 || second.aborts.get() == 0) {
            Thread.sleep(1);
        }
        assertEquals(dead, first.broken.getMessage());
    }

    @Test
    void problemsAreThoseOfTheFirstWorks() throws InterruptedException {
        FakeWork one = work(first);
        work(first);
        FakeWork other = work(second);
        while (!asked.equals(List.of(one, other))) {
            Thread.sleep(1);
        }
    }

    @Test
    void drainingWaitsForAllToEnd() throws InterruptedException {
        FakeWork good = work(first);
        FakeWork late = work(second);
        CountDownLatch drained = new CountDownLatch(1);
        Thread thread =
                new Thread(
                        () -> {
                            watchdog.drain();
                            drained.countDown();
                        });
        thread.start();
        assertFalse(drained.await(50, TimeUnit.MILLISECONDS));
        good.done = true;
        good.completed.await();
        assertFalse(drained.await(50, TimeUnit.MILLISECONDS));
        late.late = true;
        drained.await();
        assertNull(good.failure);
        assertTrue(late.failure instanceof CollectiveTimeoutException, "" + late.failure);
    }

    /** A work that is being failed is on no queue any more, but the GPU may still run it. */
    @Test
    void drainingWaitsForAWorkThatIsBeingFailed() throws InterruptedException {
        CountDownLatch aborting = new CountDownLatch(1);
        CountDownLatch stopped = new CountDownLatch(1);
        first.onAbort =
                () -> {
                    aborting.countDown();
                    try {
                        stopped.await();
                    } catch (InterruptedException e) {
                        throw new AssertionError(e);
                    }
                };
        FakeWork late = work(first);
        late.late = true;
        aborting.await();
        assertFalse(watchdog.isDone());
        assertFalse(watchdog.isIdle());
        AtomicInteger undone = new AtomicInteger(-1);
        Thread draining =
                new Thread(
                        () -> {
                            watchdog.drain();
                            undone.set((int) late.completed.getCount());
                        });
        draining.start();
        stopped.countDown();
        draining.join();
        assertEquals(0, undone.get());
    }

    @Test
    void drainingEndsIfInterrupted() throws InterruptedException {
        FakeWork endless = work(first);
        CountDownLatch interrupted = new CountDownLatch(1);
        Thread thread =
                new Thread(
                        () -> {
                            watchdog.drain();
                            if (Thread.currentThread().isInterrupted()) {
                                interrupted.countDown();
                            }
                        });
        thread.start();
        thread.interrupt();
        interrupted.await();
        assertNull(endless.failure);
        endless.done = true;
    }

    /** As when a callback of a work destroys the group: no other thread watches the works. */
    @Test
    void continuationCanDrain() throws InterruptedException {
        FakeWork failing = work(second);
        FakeWork other = work(first);
        CountDownLatch drained = new CountDownLatch(1);
        failing.onComplete =
                () -> {
                    other.late = true;
                    watchdog.drain();
                    drained.countDown();
                };
        second.error = "remote process exited";
        boolean ends = drained.await(20, TimeUnit.SECONDS);
        other.done = true; // so that the watchdog can be closed in any case
        assertTrue(ends);
        assertTrue(other.failure instanceof CollectiveTimeoutException, "" + other.failure);
    }

    @Test
    void failingTwiceAbortsOnce() {
        FakeWork work = work(first);
        watchdog.fail(List.of(first), new CollectiveException("one"));
        watchdog.fail(List.of(first, second), new CollectiveException("two"));
        assertEquals("one", work.failure.getMessage());
        assertEquals("one", first.broken.getMessage());
        assertEquals("two", second.broken.getMessage());
        assertEquals(1, first.aborts.get());
    }
}
