/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Threads that are the ranks of a group: runs code on each and waits for all. When one fails, the
 * others have a grace period to find out by themselves, and are interrupted then.
 *
 * @param <T> what the code returns
 */
final class RankThreads<T> {

    private final Body<T> body;
    private final long graceNanos;

    // Guarded by this.
    private final List<T> results;
    private final Throwable[] thrown; // by each rank; null if it has not failed
    private final RuntimeException[] thrownThen; // when its failure was handled
    private final int[] order; // the ranks that failed, the first one first
    private int failedRanks;
    private int running;

    private RankThreads(int worldSize, Duration grace, Body<T> body) {
        this.body = body;
        graceNanos = grace.toNanos();
        running = worldSize;
        results = new ArrayList<>(Collections.nCopies(worldSize, null));
        thrown = new Throwable[worldSize];
        thrownThen = new RuntimeException[worldSize];
        order = new int[worldSize];
    }

    /** What a rank does. */
    interface Body<T> {

        T run(int rank) throws Throwable;

        /** Runs on the thread of a rank that has failed, once its failure is known as such. */
        default void failed(int rank) {}
    }

    /**
     * Runs code for each rank.
     *
     * @param worldSize the number of ranks
     * @param grace how long ranks run on, uninterrupted, after one has failed
     * @param body the code
     * @return what each rank returned
     * @throws CollectiveException if a rank failed: the first failure, the others suppressed
     */
    static <T> List<T> run(int worldSize, Duration grace, Body<T> body) {
        return new RankThreads<>(worldSize, grace, body).run();
    }

    private List<T> run() {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < results.size(); i++) {
            int rank = i;
            threads.add(new Thread(() -> run(rank), "rank-" + rank));
        }
        start(threads);
        boolean interrupted = await(threads);
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        synchronized (this) {
            if (failedRanks == 0) {
                return results;
            }
            CollectiveException first = failure(order[0]);
            for (int i = 1; i < failedRanks; i++) {
                first.addSuppressed(failure(order[i]));
            }
            throw first;
        }
    }

    /** Ranks for which there is no thread have failed; those that run find out, as ever. */
    private void start(List<Thread> threads) {
        for (int rank = 0; rank < threads.size(); rank++) {
            try {
                threads.get(rank).start();
            } catch (OutOfMemoryError e) {
                synchronized (this) {
                    for (; rank < threads.size(); rank++) {
                        fail(rank, e);
                        running--;
                    }
                }
            }
        }
    }

    /** Takes no memory, of which there may be none. */
    private synchronized void fail(int rank, Throwable failure) {
        thrown[rank] = failure;
        order[failedRanks++] = rank;
        notifyAll();
    }

    private void run(int rank) {
        try {
            T result = body.run(rank);
            synchronized (this) {
                results.set(rank, result);
            }
        } catch (Throwable t) { // Errors as well: a library that cannot be loaded is one.
            fail(rank, t); // Before the others can fail for it.
            try {
                body.failed(rank);
            } catch (RuntimeException e) {
                thrownThen[rank] = e;
            }
        } finally {
            synchronized (this) {
                running--;
                notifyAll();
            }
        }
    }

    private CollectiveException failure(int rank) {
        CollectiveException failure = failure(rank, thrown[rank]);
        if (thrownThen[rank] != null) {
            failure.addSuppressed(thrownThen[rank]);
        }
        return failure;
    }

    /** Says which rank has failed; what callers want to catch stays what it is. */
    private static CollectiveException failure(int rank, Throwable t) {
        boolean speaks = t instanceof CollectiveException || t instanceof UncheckedIOException;
        String text = speaks ? t.getMessage() : t.toString();
        String message = "rank " + rank + " failed: " + text;
        if (t instanceof CollectiveTimeoutException timeout) {
            return new CollectiveTimeoutException(message, timeout.missingRanks(), timeout);
        }
        if (t instanceof CollectiveMismatchException mismatch) {
            CollectiveException failure =
                    new CollectiveMismatchException(message, mismatch.isGroupBroken());
            failure.initCause(t);
            return failure;
        }
        return new CollectiveException(message, t);
    }

    /** Waits for all ranks, and tells whether this thread was interrupted meanwhile. */
    private boolean await(List<Thread> threads) {
        boolean interrupted = false;
        boolean failed = false;
        long since = 0;
        while (true) {
            try {
                synchronized (this) {
                    if (running == 0) {
                        return interrupted;
                    }
                    if (failedRanks == 0) {
                        wait();
                        continue;
                    }
                    if (!failed) {
                        failed = true;
                        since = System.nanoTime();
                    }
                    long left = graceNanos - (System.nanoTime() - since);
                    if (left > 0) {
                        TimeUnit.NANOSECONDS.timedWait(this, left + 1);
                        continue;
                    }
                    failed = false; // One that goes on all the same is interrupted again.
                }
                threads.forEach(Thread::interrupt);
            } catch (InterruptedException e) {
                // The ranks notice, give up, and are waited for all the same.
                interrupted = true;
                threads.forEach(Thread::interrupt);
            }
        }
    }
}
