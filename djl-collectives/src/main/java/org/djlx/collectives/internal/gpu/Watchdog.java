/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.gpu;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Operation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Completes the works of one rank's group, and ends them if they take too long, if a communicator
 * reports an error or if a peer has died: nobody need wait for a work for that. Its thread sleeps
 * while there is none. Internal: for backends on GPUs.
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
         * Tells whether the operation has taken longer than it may.
         *
         * @return true if it has
         */
        boolean isLate();

        /**
         * Returns the operation.
         *
         * @return the operation
         */
        Operation operation();

        /**
         * Returns where the work runs.
         *
         * @return the line
         */
        Line lane();

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
    public interface Line {

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
         * Returns what fails with a line: that line, and what is of no use without it.
         *
         * @param line the line
         * @return the lines
         */
        Collection<? extends Line> failingWith(Line line);

        /**
         * Returns all lines.
         *
         * @return the lines
         */
        Collection<? extends Line> lines();

        /**
         * Tells which peer is known to have died, if any.
         *
         * @return what is known of it, or empty
         */
        Optional<String> deadPeer();
    }

    private static final Logger logger = LoggerFactory.getLogger(Watchdog.class);
    private static final long INTERVAL_MILLIS = 5;
    // Aborting frees GPU memory, which can wait for what other groups have under way.
    private static final Duration ABORT_PATIENCE = Duration.ofSeconds(10);

    private final Group group;
    private final Set<Watched> works = new LinkedHashSet<>();
    private final Thread thread;
    private boolean closed;

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
     * Watches over a work until it has ended.
     *
     * @param work the work
     */
    public synchronized void add(Watched work) {
        works.add(work);
        if (works.size() == 1) {
            notifyAll();
        }
    }

    /**
     * Forgets a work.
     *
     * @param work the work
     * @return false if it was not there any more
     */
    public synchronized boolean remove(Watched work) {
        return works.remove(work);
    }

    /**
     * Tells whether all works have ended.
     *
     * @return true if they have
     */
    public boolean isIdle() {
        return running().stream().allMatch(this::poll);
    }

    /** Tells whether a work has ended; it has, with all on its line, if the GPU cannot tell. */
    private boolean poll(Watched work) {
        try {
            return work.poll();
        } catch (RuntimeException e) {
            CollectiveException reason =
                    new CollectiveException(work.operation() + " failed: " + e.getMessage(), e);
            fail(group.failingWith(work.lane()), reason);
            if (work.seal(reason)) { // Its line was broken before.
                work.complete(false);
            }
            return true;
        }
    }

    private synchronized List<Watched> running() {
        return new ArrayList<>(works);
    }

    private void watch() {
        try {
            while (awaitWork()) {
                check();
                Thread.sleep(INTERVAL_MILLIS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized boolean awaitWork() throws InterruptedException {
        while (works.isEmpty() && !closed) {
            wait();
        }
        return !closed;
    }

    private synchronized boolean isClosed() {
        return closed;
    }

    private void check() {
        List<Watched> running = running();
        // A work that has ended may have done so in a way that shows on its line only.
        Set<Line> lines = running.stream().map(Watched::lane).collect(Collectors.toSet());
        List<Watched> done = running.stream().filter(this::poll).toList();
        synchronized (this) {
            done.forEach(works::remove);
        }
        running.removeAll(Set.copyOf(done));
        if (isClosed()) {
            return; // By what a work completed: nothing may be asked any more.
        }
        for (Watched work : running) {
            if (work.isLate() && !poll(work)) {
                fail(group.failingWith(work.lane()), late(work));
            }
        }
        if (isClosed()) {
            return;
        }
        for (Line line : lines) {
            line.error()
                    .map(CollectiveException::new)
                    .ifPresent(reason -> fail(group.failingWith(line), reason));
        }
        if (!running.isEmpty() && !isClosed()) {
            group.deadPeer()
                    .map(text -> new CollectiveException(text + "; the group is broken"))
                    .ifPresent(reason -> fail(group.lines(), reason));
        }
    }

    private static CollectiveException late(Watched work) {
        Operation operation = work.operation();
        return new CollectiveTimeoutException(
                operation + " timed out after " + operation.timeout() + work.lane().hint(),
                List.of());
    }

    /**
     * Breaks what works run on, aborts it, and fails the works that have not ended.
     *
     * @param failing what breaks
     * @param reason why
     */
    public void fail(Collection<? extends Line> failing, CollectiveException reason) {
        List<Line> broken = new ArrayList<>(failing);
        broken.removeIf(line -> !line.breakWith(reason));
        if (broken.isEmpty()) {
            return;
        }
        List<Watched> running;
        synchronized (this) {
            running = works.stream().filter(work -> broken.contains(work.lane())).toList();
            running.forEach(works::remove);
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

    private static void abort(Line line) {
        try {
            line.abort();
        } catch (RuntimeException e) {
            logger.warn("what runs on a GPU cannot be ended", e);
        }
    }

    /** Aborts all at once: what one has enqueued may wait for another. */
    private static boolean abort(List<Line> lines) {
        List<Thread> aborters =
                lines.stream()
                        .map(line -> LongCalls.start("collectives-abort", () -> abort(line)))
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
