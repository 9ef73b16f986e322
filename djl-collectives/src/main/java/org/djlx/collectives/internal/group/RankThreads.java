// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.nativeops.host.FailureText;

/**
 * Runs code on one thread per rank and waits for all threads. When a rank fails, the other ranks
 * have a grace period in which to fail by themselves; then their threads are interrupted.
 */
public final class RankThreads<T> {

    private final Body<T> body;
    private final long graceNanos;

    // Guarded by this.
    private final List<T> results;
    private final Throwable[] thrown; // by rank; null if the rank has not failed
    private final RuntimeException[] thrownByHandler; // by rank, from Body.failed
    private final int[] order; // failed ranks, in order of failure
    private int failedRanks;
    private int running;

    private RankThreads(int worldSize, Duration grace, Body<T> body) {
        this.body = body;
        graceNanos = grace.toNanos();
        running = worldSize;
        results = new ArrayList<>(Collections.nCopies(worldSize, null));
        thrown = new Throwable[worldSize];
        thrownByHandler = new RuntimeException[worldSize];
        order = new int[worldSize];
    }

    public interface Body<T> {

        /** Runs one rank. */
        T run(int rank) throws Throwable;

        /** Called on the thread of a rank that has failed, after the failure has been recorded. */
        default void failed(int rank, Throwable failure) {}
    }

    /**
     * Runs code for each rank.
     *
     * @param grace how long the other ranks may run after one has failed, before the interrupt
     * @return the results, in rank order
     * @throws CollectiveException if a rank failed: the first failure, with the others suppressed;
     *     if all failed with the same mismatch, that exception
     */
    public static <T> List<T> run(int worldSize, Duration grace, Body<T> body) {
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
            if (isOneMismatch()) {
                throw (CollectiveMismatchException) thrown[order[0]];
            }
            CollectiveException first = failure(order[0]);
            for (int i = 1; i < failedRanks; i++) {
                first.addSuppressed(failure(order[i]));
            }
            throw first;
        }
    }

    /** Returns whether all ranks failed with the same mismatch, which names the ranks' calls. */
    private boolean isOneMismatch() {
        return failedRanks == thrown.length
                && thrown[0] instanceof CollectiveMismatchException
                && Arrays.stream(thrownByHandler).allMatch(Objects::isNull)
                && Arrays.stream(thrown)
                        .allMatch(
                                t ->
                                        t instanceof CollectiveMismatchException
                                                && t.getMessage().equals(thrown[0].getMessage()));
    }

    /** Starts the threads. If a thread cannot be created, its rank and all later ones fail. */
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

    /** Records a failure. Allocates nothing, because memory may have run out. */
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
        } catch (Throwable t) { // Includes errors, such as UnsatisfiedLinkError.
            fail(rank, t); // Record this failure first: it causes failures of other ranks.
            try {
                body.failed(rank, t);
            } catch (RuntimeException e) {
                thrownByHandler[rank] = e;
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
        if (thrownByHandler[rank] != null) {
            failure.addSuppressed(thrownByHandler[rank]);
        }
        return failure;
    }

    /** Wraps a failure to name the rank; keeps the exception types that callers catch. */
    private static CollectiveException failure(int rank, Throwable t) {
        boolean isDescriptive =
                t instanceof CollectiveException || t instanceof UncheckedIOException;
        String text = isDescriptive ? FailureText.message(t) : FailureText.of(t);
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

    /** Waits for all ranks; returns whether this thread was interrupted during the wait. */
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
                    failed = false; // Interrupt again after another grace period.
                }
                threads.forEach(Thread::interrupt);
            } catch (InterruptedException e) {
                // Interrupt the ranks, then keep waiting for them.
                interrupted = true;
                threads.forEach(Thread::interrupt);
            }
        }
    }
}
