// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Which thread runs operations. */
@Timeout(60)
class OpQueueTest {

    private static final int ROUNDS = 1_000;
    private static final Agreed AGREED = new Agreed(null, new long[0], null, 0);

    /** The thread that runs operations without a waiter. */
    private static Thread progressOf(ProcessGroup group) {
        String name = "shm-" + group.name() + "-rank-" + group.rank();
        return Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().equals(name))
                .findFirst()
                .orElseThrow();
    }

    /** Waits until a thread sleeps until it is woken; returns how often it has slept by then. */
    private static long awaitSleep(Thread thread) {
        while (!Thread.currentThread().isInterrupted()) {
            ThreadInfo info = ManagementFactory.getThreadMXBean().getThreadInfo(thread.getId());
            if (info.getThreadState() == Thread.State.WAITING) {
                return info.getWaitedCount();
            }
            LockSupport.parkNanos(1_000_000);
        }
        throw new IllegalStateException("it does not sleep");
    }

    /** Waits until a thread sleeps without a timeout, and is not woken for some time. */
    private static void awaitLongSleep(Thread thread) {
        int calm = 0;
        long before = 0;
        while (calm < 20) {
            long count = awaitSleep(thread);
            calm = count == before ? calm + 1 : 0;
            before = count;
            LockSupport.parkNanos(1_000_000);
        }
    }

    private static void awaitLatch(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** One thread waits for the first of two operations, another for the second. */
    @Test
    void eachWaitingThreadRunsItsOperation() throws Exception {
        ProcessGroup group = ProcessGroups.local(1).get(0);
        try {
            List<Integer> order = new CopyOnWriteArrayList<>();
            CountDownLatch running = new CountDownLatch(1);
            CountDownLatch release = new CountDownLatch(1);
            Work first =
                    group.execute(
                            OpType.BARRIER,
                            AGREED,
                            operation -> {
                                running.countDown();
                                awaitLatch(release);
                                order.add(1);
                            });
            Executor threads = task -> new Thread(task).start();
            CompletableFuture<Void> firstWaiter = CompletableFuture.runAsync(first::await, threads);
            running.await();
            Work second = group.execute(OpType.BARRIER, AGREED, operation -> order.add(2));
            CompletableFuture<Void> secondWaiter =
                    CompletableFuture.runAsync(second::await, threads);
            release.countDown();
            firstWaiter.get();
            secondWaiter.get();
            assertEquals(List.of(1, 2), order);
            assertTrue(second.isSuccess());
        } finally {
            group.destroy();
        }
    }

    /** The queue's thread sleeps while the running operation waits for a peer. */
    @Test
    void operationsBehindARunningOneAreNotPolled() throws Exception {
        ProcessGroup group = ProcessGroups.local(1).get(0);
        try {
            Thread progress = progressOf(group);
            Work[] next = new Work[1];
            while (next[0] == null) {
                Work work =
                        group.execute(
                                OpType.BARRIER,
                                AGREED,
                                operation -> {
                                    // If this thread was late, the queue's runs the operation.
                                    if (Thread.currentThread() != progress) {
                                        awaitSleep(progress);
                                        next[0] = group.barrier();
                                        awaitLongSleep(progress);
                                    }
                                });
                work.await();
            }
            // No other thread runs it.
            next[0].getFuture().toCompletableFuture().get();
        } finally {
            group.destroy();
        }
    }

    /**
     * The queue's thread checks rarely while a caller runs all operations: each check costs it
     * time.
     */
    @Test
    void queueThreadLeavesAWaitingCallerAlone() {
        ProcessGroup group = ProcessGroups.local(1).get(0);
        try {
            Thread progress = progressOf(group);
            runBarriers(group); // Loads the classes.
            long before = waits(progress);
            runBarriers(group);
            long checks = waits(progress) - before;
            assertTrue(checks < 200, checks + " checks in 400 ms"); // 4 ms apart, in the end
        } finally {
            group.destroy();
        }
    }

    /** Runs barriers for 400 ms. */
    private static void runBarriers(ProcessGroup group) {
        long end = System.nanoTime() + 400_000_000;
        while (System.nanoTime() < end) {
            group.barrier().await();
        }
    }

    private static long waits(Thread thread) {
        return ManagementFactory.getThreadMXBean().getThreadInfo(thread.getId()).getWaitedCount();
    }

    /** The running thread stops just when the queue's thread wants to run the next operation. */
    @Test
    @Tag("slow")
    void operationsLeftByAStoppedThreadAreRun() throws Exception {
        Random random = new Random(1);
        ProcessGroup group = ProcessGroups.local(1).get(0);
        try {
            Thread progress = progressOf(group);
            for (int round = 0; round < ROUNDS; round++) {
                int spins = random.nextInt(200);
                Work first =
                        group.execute(
                                OpType.BARRIER, AGREED, operation -> awaitLook(progress, spins));
                Work second = group.barrier();
                first.await();
                second.getFuture().toCompletableFuture().get();
            }
        } finally {
            group.destroy();
        }
    }

    /** Waits until a thread's sleep for a time has ended, and for some looks more. */
    private static void awaitLook(Thread thread, int spins) {
        long begin = System.nanoTime();
        boolean slept = false;
        while (System.nanoTime() - begin < 5_000_000) {
            boolean sleeps = thread.getState() == Thread.State.TIMED_WAITING;
            if (slept && !sleeps) {
                break;
            }
            slept |= sleeps;
        }
        for (int i = 0; i < spins; i++) {
            Thread.onSpinWait();
        }
    }

    @Test
    void anOperationCannotWaitForItself() {
        ProcessGroup group = ProcessGroups.local(1).get(0);
        try {
            CompletableFuture<Work> own = new CompletableFuture<>();
            Work work = group.execute(OpType.BARRIER, AGREED, operation -> own.join().await());
            own.complete(work);
            CollectiveException e = assertThrows(CollectiveException.class, work::await);
            assertTrue(e.getMessage().contains("cannot wait for"), e::toString);
        } finally {
            group.destroy();
        }
    }

    @Test
    void continuationMayWaitForTheNextOperation() {
        ProcessGroup group = ProcessGroups.local(1).get(0);
        try {
            Work first = group.barrier();
            CompletableFuture<Boolean> next =
                    first.getFuture()
                            .thenApply(
                                    result -> {
                                        Work second = group.barrier();
                                        second.await();
                                        return second.isSuccess();
                                    })
                            .toCompletableFuture();
            first.await();
            assertTrue(next.join());
        } finally {
            group.destroy();
        }
    }

    /** The queue's thread, because no thread waits for the operation. */
    @Test
    void anInterruptEndsWithItsOperation() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            for (ProcessGroup group : groups) {
                group.execute(
                        OpType.BARRIER, AGREED, operation -> Thread.currentThread().interrupt());
            }
            List<CompletableFuture<?>> ends = new ArrayList<>();
            for (ProcessGroup group : groups) {
                ends.add(group.barrier().getFuture().toCompletableFuture());
                LockSupport.parkNanos(200_000_000); // Until rank 0 sleeps.
            }
            ends.forEach(CompletableFuture::join);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
