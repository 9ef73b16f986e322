// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.LongCalls;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Completes the works of one rank's group on its own thread, even if no thread waits for them.
 * Fails works
 *
 * <ul>
 *   <li>that exceed their timeout; the log gets a warning earlier, see {@link
 *       Operation#takeWarning}
 *   <li>whose queue reports an error
 *   <li>if a peer has died, or the group has another problem.
 * </ul>
 *
 * <p>The thread sleeps while there is no work.
 */
public final class Watchdog implements AutoCloseable {

    public interface Watched {

        /** Checks whether the work has ended, and completes it if so. */
        boolean poll();

        /** Returns whether the work has been completed; does not query the GPU or wait. */
        boolean isDone();

        /**
         * Returns the time in ns that counts towards the operation's timeout; 0 while the timeout
         * is enforced elsewhere.
         */
        long elapsedNanos();

        Operation operation();

        Queue queue();

        /**
         * Marks the work as failed, or returns false if it has ended. {@link #complete} must
         * follow.
         */
        boolean seal(CollectiveException reason);

        /**
         * Completes a work that has ended. {@code quiet}: the GPU no longer uses the work's memory.
         */
        void complete(boolean quiet);
    }

    /** A queue of works. If the queue fails, its works fail. */
    public interface Queue {

        Optional<String> error();

        /**
         * Returns advice for the message of an operation that has timed out: the end of a sentence,
         * which may be empty.
         */
        default String hint() {
            return "";
        }

        /**
         * Returns the ranks that are known not to have called the first operation on this queue.
         */
        default List<Integer> missing() {
            return List.of();
        }

        /** Breaks the queue: all later calls fail. Returns false if the queue is broken already. */
        boolean breakWith(CollectiveException reason);

        /** Aborts the running operations, and returns when the GPU has stopped. */
        void abort();
    }

    public interface Group {

        /**
         * Returns the queues that fail if a queue fails: the queue itself, and the queues that need
         * it.
         */
        Collection<? extends Queue> failingWith(Queue queue);

        Collection<? extends Queue> queues();

        /**
         * Returns the reason why operations cannot succeed, if one is known: a peer has died, has
         * called a different operation, or will not call the running operation. Gets each queue's
         * first work that has not ended.
         */
        Optional<CollectiveException> problem(Collection<? extends Watched> first);
    }

    private static final Logger logger = LoggerFactory.getLogger(Watchdog.class);
    private static final long POLL_MILLIS = 5; // while works are under way
    private static final long IDLE_POLL_MILLIS = 100; // without works, if a queue is watched
    // An abort frees GPU memory, which can wait for operations of other groups. If the GPU has not
    // stopped within this time, the works fail without releasing their memory, because the GPU may
    // still write to it.
    private static final Duration ABORT_PATIENCE = Duration.ofSeconds(10);

    private final Group group;
    // The works of each queue, in the order in which they end. Queues are few, and stay.
    private final Map<Queue, Deque<Watched>> works = new LinkedHashMap<>(); // guarded by this
    private int count; // of works in the map; guarded by this
    // Works that fail() has taken and not completed yet, and the calling thread; guarded by this.
    private final Map<Watched, Thread> failingWorks = new IdentityHashMap<>();
    // When a work became the first of its queue; used by the watchdog's thread only.
    private final Map<Watched, Long> first = new IdentityHashMap<>();
    private volatile Queue alwaysWatched; // watched also without works; null if none
    private final Thread thread;
    private volatile boolean closed; // set under this

    public Watchdog(String name, Group group) {
        this.group = group;
        thread = new Thread(this::watch, name);
        thread.setDaemon(true);
        thread.start();
    }

    /**
     * Watches a work until it has ended. The works of a queue end in the order in which they are
     * added: the watchdog polls only the first work of a queue.
     */
    public synchronized void add(Watched work) {
        works.computeIfAbsent(work.queue(), queue -> new ArrayDeque<>()).add(work);
        count++;
        if (count == 1) {
            notifyAll();
        }
    }

    /**
     * Watches a queue even while it has no works, every 100 ms: graphs replay operations on it
     * without works.
     */
    public synchronized void watchAlways(Queue queue) {
        alwaysWatched = queue;
        notifyAll();
    }

    /** Stops watching a work. Returns false if the work was no longer watched. */
    public synchronized boolean remove(Watched work) {
        Deque<Watched> queue = works.get(work.queue());
        boolean found = queue != null && queue.removeLastOccurrence(work);
        count -= found ? 1 : 0;
        return found;
    }

    /** Polls all works, and returns whether they have ended. */
    public boolean isIdle() {
        return running().stream().allMatch(this::poll);
    }

    /**
     * Returns whether all works have been completed; false if some may be under way. Makes no call
     * of the driver, so it may be called while the process exits.
     */
    public boolean isDone() {
        return running().stream().allMatch(Watched::isDone);
    }

    /**
     * Waits until all works have ended. Works that cannot succeed fail at their timeout. Returns
     * early if the thread is interrupted; the interrupt flag is kept.
     */
    public void drain() {
        try {
            while (!isIdle()) {
                if (Thread.currentThread() == thread) {
                    // A callback on this thread blocks the loop, so check here.
                    checkSafely();
                }
                Thread.sleep(POLL_MILLIS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Polls a work. If the GPU cannot be queried, all works of the queue fail. */
    private boolean poll(Watched work) {
        try {
            return work.poll();
        } catch (RuntimeException e) {
            CollectiveException reason =
                    new CollectiveException(work.operation() + " failed: " + e.getMessage(), e);
            fail(group.failingWith(work.queue()), reason);
            if (work.seal(reason)) { // Its queue was broken before.
                work.complete(false);
            }
            return true;
        }
    }

    /**
     * Returns the works that have not been completed. Leaves out works that the calling thread is
     * completing: it is in the callback of one of these works and must not wait for the rest.
     */
    private synchronized List<Watched> running() {
        List<Watched> running = new ArrayList<>();
        works.values().forEach(running::addAll);
        failingWorks.forEach(
                (work, by) -> {
                    if (by != Thread.currentThread()) {
                        running.add(work);
                    }
                });
        return running;
    }

    /** Returns the first work of each queue that has any. */
    private synchronized List<Watched> heads() {
        // A loop: the interpreter runs a stream much longer, and callers of add() would wait.
        List<Watched> heads = new ArrayList<>();
        for (Deque<Watched> queue : works.values()) {
            if (!queue.isEmpty()) {
                heads.add(queue.peek());
            }
        }
        return heads;
    }

    private void watch() {
        try {
            while (awaitWork()) {
                checkSafely();
                Thread.sleep(POLL_MILLIS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Runs one round. If it throws, the group fails, so that no work stays unwatched. */
    private void checkSafely() {
        try {
            check();
        } catch (RuntimeException | Error e) {
            fail(group.queues(), new CollectiveException("the watchdog failed: " + e, e));
        }
    }

    private synchronized boolean awaitWork() throws InterruptedException {
        if (count == 0) {
            first.clear(); // works that remove() has taken
        }
        while (count == 0 && alwaysWatched == null && !closed) {
            wait();
        }
        if (count == 0 && !closed) {
            wait(IDLE_POLL_MILLIS);
        }
        return !closed;
    }

    private void check() {
        // Before works complete: only the queue may show the error of a work that has ended.
        Set<Queue> queues = queuesToWatch();
        List<Watched> running = new ArrayList<>();
        for (Watched head : heads()) {
            Watched first = firstRunning(head);
            if (first != null) {
                running.add(first);
            }
        }
        if (closed) {
            return; // A callback of a completed work has closed the group.
        }
        for (Watched work : running) {
            long elapsed = work.elapsedNanos();
            if (elapsed <= work.operation().timeout().toNanos()) {
                warn(work, Math.min(elapsed, sinceFirst(work)));
            } else if (!poll(work)) {
                fail(group.failingWith(work.queue()), late(work));
            }
        }
        first.keySet().retainAll(running);
        if (closed) {
            return;
        }
        if (!running.isEmpty() || alwaysWatched != null) {
            // First, because it may name the operation.
            group.problem(running).ifPresent(reason -> fail(group.queues(), reason));
        }
        for (Queue queue : queues) {
            if (!closed) {
                queue.error()
                        .map(CollectiveException::new)
                        .ifPresent(reason -> fail(group.failingWith(queue), reason));
            }
        }
    }

    private synchronized Set<Queue> queuesToWatch() {
        Set<Queue> queues = new LinkedHashSet<>();
        for (Watched head : heads()) {
            queues.add(head.queue());
        }
        if (alwaysWatched != null) {
            queues.add(alwaysWatched);
        }
        return queues;
    }

    /** Completes the works of a queue that have ended; returns the first that has not, or null. */
    private Watched firstRunning(Watched head) {
        Watched work = head;
        while (work != null && !closed && poll(work)) {
            synchronized (this) {
                Deque<Watched> queue = works.get(work.queue());
                if (queue == null) {
                    return null; // The queue has failed with all its works.
                }
                if (queue.peek() == work) {
                    queue.remove();
                    count--;
                }
                work = queue.peek();
            }
        }
        return work;
    }

    /** Returns how long a work has been first in its queue. Only the first work warns. */
    private long sinceFirst(Watched work) {
        long now = System.nanoTime();
        return now - first.computeIfAbsent(work, absent -> now);
    }

    private static void warn(Watched work, long waited) {
        Operation operation = work.operation();
        if (!operation.takeWarning(waited)) {
            return;
        }
        List<Integer> missing = work.queue().missing();
        if (missing.isEmpty()) {
            LongWaits.warn(
                    operation,
                    "other ranks or its GPU",
                    waited,
                    operation.timeout(),
                    work.queue().hint() + operation.hint());
        } else {
            LongWaits.warn(
                    operation,
                    GroupErrors.ranks(missing),
                    waited,
                    operation.timeout(),
                    operation.hint());
        }
    }

    private static CollectiveException late(Watched work) {
        Operation operation = work.operation();
        List<Integer> missing = work.queue().missing();
        return GroupErrors.timedOut(operation, missing, work.queue().hint());
    }

    /**
     * Breaks queues, fails their works that have not ended, and aborts the queues. Queues that are
     * broken already are left alone. Until a failed work is completed, {@link #drain}, {@link
     * #isIdle} and {@link #isDone} of other threads count it as running.
     */
    public void fail(Collection<? extends Queue> failing, CollectiveException reason) {
        List<Queue> broken = new ArrayList<>(failing);
        broken.removeIf(queue -> !queue.breakWith(reason));
        if (broken.isEmpty()) {
            return;
        }
        List<Watched> running;
        synchronized (this) {
            running = new ArrayList<>();
            for (Queue queue : broken) {
                Deque<Watched> failed = works.remove(queue);
                if (failed != null) {
                    running.addAll(failed);
                    count -= failed.size();
                }
            }
            running.forEach(work -> failingWorks.put(work, Thread.currentThread()));
        }
        try {
            // Before the abort: after it, the works would look as if they had succeeded.
            List<Watched> failed = running.stream().filter(work -> seal(work, reason)).toList();
            boolean quiet = abort(broken);
            failed.forEach(work -> work.complete(quiet));
        } finally {
            synchronized (this) {
                running.forEach(failingWorks::remove);
            }
        }
    }

    private static boolean seal(Watched work, CollectiveException reason) {
        try {
            if (work.poll()) {
                return false;
            }
        } catch (RuntimeException e) {
            reason.addSuppressed(e);
        }
        return work.seal(reason);
    }

    private static void abort(Queue queue) {
        try {
            queue.abort();
        } catch (RuntimeException e) {
            logger.warn("cannot abort the operations of a queue", e);
        }
    }

    /**
     * Aborts all queues at the same time, because operations of one queue may wait for operations
     * of another.
     */
    private static boolean abort(List<Queue> queues) {
        List<Thread> aborters =
                queues.stream()
                        .map(queue -> LongCalls.start("collectives-abort", () -> abort(queue)))
                        .toList();
        return LongCalls.join(aborters, ABORT_PATIENCE);
    }

    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        if (Thread.currentThread() == thread) {
            return; // A callback of a completed work destroys the group.
        }
        try {
            thread.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
