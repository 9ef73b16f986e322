// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.train;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import org.djlx.collectives.CollectiveException;

/** One thread per rank of a trainer: the caller's for the first rank, and threads of its own. */
final class RankWorkers implements AutoCloseable {

    private static final int INTERRUPTED = -1; // in place of a rank
    // To wake a thread takes 0.05 ms. This covers the update of a small model between two passes.
    private static final long POLL_NANOS = 1_000_000;

    private final List<ExecutorService> threads = new ArrayList<>();
    private final Consumer<Throwable> onFailure;

    /**
     * Starts the threads.
     *
     * @param onFailure gets the first failure of a run; must abort the operations in which other
     *     ranks wait
     */
    RankWorkers(int ranks, Consumer<Throwable> onFailure) {
        this.onFailure = onFailure;
        for (int rank = 1; rank < ranks; rank++) {
            String name = "trainer-rank-" + rank;
            threads.add(
                    new ThreadPoolExecutor(
                            1,
                            1,
                            0,
                            TimeUnit.SECONDS,
                            new LinkedBlockingQueue<>(),
                            body -> {
                                Thread thread = new Thread(body, name);
                                thread.setDaemon(true);
                                return thread;
                            }) {
                        @Override
                        protected void afterExecute(Runnable task, Throwable failure) {
                            poll(() -> !getQueue().isEmpty());
                        }
                    });
        }
    }

    /** Waits a little for a condition awake, but lets other threads run. */
    private static void poll(BooleanSupplier condition) {
        long begin = System.nanoTime();
        while (!condition.getAsBoolean() && System.nanoTime() - begin < POLL_NANOS) {
            Thread.yield();
        }
    }

    /**
     * Runs code on the threads of the first {@code ranks} ranks and waits for all of them. The
     * ranks may wait for each other: the first failure is passed to {@code onFailure}, and thrown
     * at the end.
     */
    <T> List<T> run(int ranks, IntFunction<T> body) {
        return run(ranks, false, body);
    }

    /**
     * As {@link #run}.
     *
     * @param apart whether no rank waits for another; then onFailure is not called
     */
    <T> List<T> run(int ranks, boolean apart, IntFunction<T> body) {
        if (threads.isEmpty()) {
            return Collections.singletonList(body.apply(0));
        }
        Throwable[] first = new Throwable[1];
        int[] failed = new int[1]; // the rank, or INTERRUPTED
        boolean[] interrupted = new boolean[1];
        IntFunction<T> guarded =
                rank -> {
                    try {
                        return body.apply(rank);
                    } catch (RuntimeException | Error e) {
                        if (rank == 0) {
                            interrupted[0] |= isInterrupt(e); // of the caller
                        }
                        synchronized (first) {
                            if (first[0] != null) {
                                throw e;
                            }
                            first[0] = e;
                            failed[0] = rank == 0 && interrupted[0] ? INTERRUPTED : rank;
                        }
                        if (!apart) {
                            onFailure.accept(e);
                        }
                        throw e;
                    }
                };
        FutureTask<T> own = new FutureTask<>(() -> guarded.apply(0));
        List<Future<T>> futures = new ArrayList<>(List.of(own));
        for (int i = 1; i < ranks; i++) {
            int rank = i;
            futures.add(threads.get(rank - 1).submit(() -> guarded.apply(rank)));
        }
        own.run();
        List<T> results = new ArrayList<>();
        for (Future<T> future : futures) {
            poll(future::isDone);
            while (true) {
                try {
                    results.add(future.get());
                    break;
                } catch (ExecutionException e) {
                    break; // Recorded above, if it is the first.
                } catch (InterruptedException e) {
                    interrupted[0] = true;
                    boolean isFirst = false;
                    synchronized (first) {
                        if (first[0] == null && !apart) {
                            first[0] = e;
                            failed[0] = INTERRUPTED;
                            isFirst = true;
                        }
                    }
                    if (isFirst) {
                        onFailure.accept(e); // Ends operations that wait for other ranks.
                    }
                }
            }
        }
        if (interrupted[0]) {
            Thread.currentThread().interrupt();
        }
        synchronized (first) {
            if (first[0] != null && failed[0] == INTERRUPTED) {
                throw new CollectiveException(
                        "the thread was interrupted while it waited for the trainer's ranks, so"
                                + " their operations were aborted",
                        first[0]);
            }
            if (first[0] != null) {
                throw new CollectiveException(
                        "rank " + failed[0] + " of the trainer failed: " + first[0], first[0]);
            }
        }
        return results;
    }

    private static boolean isInterrupt(Throwable failure) {
        Throwable cause = failure;
        while (cause != null && !(cause instanceof InterruptedException)) {
            cause = cause.getCause();
        }
        return cause != null;
    }

    @Override
    public void close() {
        threads.forEach(ExecutorService::shutdown);
    }
}
