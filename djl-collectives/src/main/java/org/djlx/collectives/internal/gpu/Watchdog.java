/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Completes the works of one rank's group, and ends them if they take too long (before which the
 * log tells of it, see {@link Operation#takeWarning}), if a communicator reports an error or if a
 * peer has died: nobody need wait for a work for that. Its thread sleeps while there is none.
 * Internal: for backends on GPUs.
 */
public final class Watchdog implements AutoCloseable {

    /** A work. */
    public interface Watched {

        /**
         * Looks whether the work has ended well, and if so completes it.
         *
         * @return true if it has ended
         */
        boolean poll();

        /**
         * Tells whether the work has been completed, without a look at the GPU and without waiting.
         *
         * @return whether it has
         */
        boolean isDone();

        /**
         * Tells how much the operation has taken of the time that it may take.
         *
         * @return the time in nanoseconds; 0 while somebody else sees to it
         */
        long elapsedNanos();

        /**
         * Returns the operation.
         *
         * @return the operation
         */
        Operation operation();

        /**
         * Returns where the work runs.
         *
         * @return the queue
         */
        Queue queue();

        /**
         * Decides that the work has failed.
         *
         * @param reason why
         * @return false if it has ended
         */
        boolean seal(CollectiveException reason);

        /**
         * Completes the work.
         *
         * @param quiet whether the GPU no longer uses the work's memory
         */
        void complete(boolean quiet);
    }

    /** What works run on, and fail with. */
    public interface Queue {

        /**
         * Tells what is wrong, if anything.
         *
         * @return the error, or empty
         */
        Optional<String> error();

        /**
         * Tells what to do about an operation that has timed out.
         *
         * @return the end of a sentence; empty if there is nothing to say
         */
        default String hint() {
            return "";
        }

        /**
         * Tells who has not called what the first work on this queue waits for.
         *
         * @return the ranks, as far as they are known
         */
        default List<Integer> missing() {
            return List.of();
        }

        /**
         * Makes all further calls fail.
         *
         * @param reason why
         * @return false if they do so already
         */
        boolean breakWith(CollectiveException reason);

        /** Ends what is under way; returns when the GPU has stopped. */
        void abort();
    }

    /** The group. */
    public interface Group {

        /**
         * Returns what fails with a queue: that queue, and what is of no use without it.
         *
         * @param queue the queue
         * @return the queues
         */
        Collection<? extends Queue> failingWith(Queue queue);

        /**
         * Returns all queues.
         *
         * @return the queues
         */
        Collection<? extends Queue> queues();

        /**
         * Tells what is known to keep operations from ever ending well, if anything: a peer that
         * has died, that has called something else, or that will not call what is under way.
         *
         * @param first the first work of each queue that has not ended
         * @return the problem, or empty
         */
        Optional<CollectiveException> problem(Collection<? extends Watched> first);
    }

    private static final Logger logger = LoggerFactory.getLogger(Watchdog.class);
    private static final long INTERVAL_MILLIS = 5; // between looks while works are under way
    private static final long VIGIL_MILLIS = 100; // otherwise, if there is a vigil
    // Aborting frees GPU memory, which can wait for what other groups have under way. Works fail
    // behind it. What they hold is never freed if the GPU has not stopped by then: it may still
    // write there.
    private static final Duration ABORT_PATIENCE = Duration.ofSeconds(10);

    private final Group group;
    // The works of each queue in their order, in which they end. Queues are few, and stay.
    private final Map<Queue, Deque<Watched>> works = new LinkedHashMap<>(); // guarded by this
    private int count; // of all works; guarded by this
    // Since when a work is the first of its queue; by this thread alone.
    private final Map<Watched, Long> first = new IdentityHashMap<>();
    private Queue vigil; // watched also without a work, or null; guarded by this
    private final Thread thread;
    private boolean closed; // guarded by this

    /**
     * Creates a watchdog.
     *
     * @param name the thread's name
     * @param group what it watches over
     */
    public Watchdog(String name, Group group) {
        this.group = group;
        thread = new Thread(this::watch, name);
        thread.setDaemon(true);
        thread.start();
    }

    /**
     * Watches over a work until it has ended. The works of a queue end in the order in which they
     * are added: only the first that has not is looked at.
     *
     * @param work the work
     */
    public synchronized void add(Watched work) {
        works.computeIfAbsent(work.queue(), queue -> new ArrayDeque<>()).add(work);
        count++;
        if (count == 1) {
            notifyAll();
        }
    }

    /**
     * Watches over a queue also while there is no work, at leisure: what graphs replay there,
     * nobody is told of.
     *
     * @param queue the queue
     */
    public synchronized void keepVigil(Queue queue) {
        vigil = queue;
        notifyAll();
    }

    /**
     * Forgets a work.
     *
     * @param work the work
     * @return false if it was not there any more
     */
    public synchronized boolean remove(Watched work) {
        Deque<Watched> queue = works.get(work.queue());
        boolean found = queue != null && queue.removeLastOccurrence(work);
        count -= found ? 1 : 0;
        return found;
    }

    /**
     * Tells whether all works have ended.
     *
     * @return true if they have
     */
    public boolean isIdle() {
        return running().stream().allMatch(this::poll);
    }

    /**
     * Tells whether all works are known to have ended, without a call of the driver, which may not
     * take any.
     *
     * @return false if some may be under way
     */
    public boolean isDone() {
        return running().stream().allMatch(Watched::isDone);
    }

    /**
     * Waits until all works have ended: those that cannot end well do so in their time, as the
     * queue fails. Returns early if the thread is interrupted, which is kept.
     */
    public void drain() {
        try {
            while (!isIdle()) {
                if (Thread.currentThread() == thread) {
                    checkSafely(); // Nobody else does, while what a work completed is in here.
                }
                Thread.sleep(INTERVAL_MILLIS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Tells whether a work has ended; it has, with all on its queue, if the GPU cannot tell. */
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

    private synchronized List<Watched> running() {
        return works.values().stream().flatMap(Deque::stream).toList();
    }

    /** The first work of each queue that has any. */
    private synchronized List<Watched> heads() {
        return works.values().stream().filter(queue -> !queue.isEmpty()).map(Deque::peek).toList();
    }

    private void watch() {
        try {
            while (awaitWork()) {
                checkSafely();
                Thread.sleep(INTERVAL_MILLIS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Whatever goes wrong here must not leave works that nobody watches over. */
    private void checkSafely() {
        try {
            check();
        } catch (RuntimeException | Error e) {
            fail(group.queues(), new CollectiveException("the watchdog failed: " + e, e));
        }
    }

    private synchronized boolean awaitWork() throws InterruptedException {
        if (count == 0) {
            first.clear(); // Works that were taken back; nothing else lets go of them.
        }
        while (count == 0 && vigil == null && !closed) {
            wait();
        }
        if (count == 0 && !closed) {
            wait(VIGIL_MILLIS);
        }
        return !closed;
    }

    private synchronized boolean isClosed() {
        return closed;
    }

    private void check() {
        // A work that has ended may have done so in a way that shows on its queue only.
        Set<Queue> queues = queuesToWatch();
        List<Watched> running = new ArrayList<>();
        for (Watched head : heads()) {
            Watched first = firstRunning(head);
            if (first != null) {
                running.add(first);
            }
        }
        if (isClosed()) {
            return; // By what a work completed: nothing may be asked any more.
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
        if (isClosed()) {
            return;
        }
        for (Queue queue : queues) {
            queue.error()
                    .map(CollectiveException::new)
                    .ifPresent(reason -> fail(group.failingWith(queue), reason));
        }
        if ((!running.isEmpty() || isVigil()) && !isClosed()) {
            group.problem(running).ifPresent(reason -> fail(group.queues(), reason));
        }
    }

    private synchronized boolean isVigil() {
        return vigil != null;
    }

    private synchronized Set<Queue> queuesToWatch() {
        Set<Queue> queues = new LinkedHashSet<>();
        works.forEach(
                (queue, pending) -> {
                    if (!pending.isEmpty()) {
                        queues.add(queue);
                    }
                });
        if (vigil != null) {
            queues.add(vigil);
        }
        return queues;
    }

    /** Completes what has ended on a queue; returns the first work that has not, or null. */
    private Watched firstRunning(Watched head) {
        Watched work = head;
        while (work != null && !isClosed() && poll(work)) {
            synchronized (this) {
                Deque<Watched> queue = works.get(work.queue());
                if (queue == null) {
                    return null; // It has failed, and all on it.
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

    /** Behind one that takes long, others have been under way for as long: that is said once. */
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
            String hint = operation.timeout() + work.queue().hint();
            LongWaits.tell(operation, "other ranks, or its GPU,", waited, hint);
        } else {
            LongWaits.tell(operation, GroupErrors.ranks(missing), waited, operation.timeout());
        }
    }

    private static CollectiveException late(Watched work) {
        Operation operation = work.operation();
        List<Integer> missing = work.queue().missing();
        return GroupErrors.timedOut(operation, missing, work.queue().hint());
    }

    /**
     * Breaks what works run on, aborts it, and fails the works that have not ended.
     *
     * @param failing what breaks
     * @param reason why
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
        }
        // Decided before the abort, after which they look as if they had ended well.
        List<Watched> failed = running.stream().filter(work -> seal(work, reason)).toList();
        boolean quiet = abort(broken);
        failed.forEach(work -> work.complete(quiet));
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
            logger.warn("what runs on a GPU cannot be ended", e);
        }
    }

    /** Aborts all at once: what one has enqueued may wait for another. */
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
            return; // What depends on a work that has ended destroys the group.
        }
        try {
            thread.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
