// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.IntConsumer;
import org.djlx.collectives.CollectiveException;

/** One thread per rank of a trainer: the caller's for the first rank, and threads of its own. */
public final class RankWorkers implements AutoCloseable {

    private static final int INTERRUPTED = -1; // in place of a rank
    // To wake a thread takes 0.05 ms. This covers the update of a small model between two passes.
    private static final long POLL_NANOS = 1_000_000;

    private final List<ExecutorService> threads = new ArrayList<>();
    private final Consumer<Throwable> onFailure;

    /**
     * {@code onFailure} gets the first failure of a run, and must abort the operations in which
     * other ranks wait.
     */
    public RankWorkers(int ranks, Consumer<Throwable> onFailure) {
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
     * Runs code on the first {@code ranks} ranks and waits for all. Passes the first failure to
     * {@code onFailure}, and throws it at the end, with a suppressed {@link CollectiveException}
     * that names the rank. With {@code apart} no rank waits for another, and onFailure is not
     * called, as after a {@link FailureOfAllRanks}.
     */
    public void run(int ranks, boolean apart, IntConsumer body) {
        if (threads.isEmpty()) {
            body.accept(0);
            return;
        }
        AtomicReference<Throwable> first = new AtomicReference<>();
        int[] failed = new int[1]; // the rank, or INTERRUPTED; read when all have ended
        boolean[] interrupted = new boolean[1]; // the caller
        IntConsumer guarded =
                rank -> {
                    try {
                        body.accept(rank);
                    } catch (Throwable e) { // A Kotlin block may throw a checked exception.
                        boolean isInterrupt = rank == 0 && isInterrupt(e);
                        interrupted[0] |= isInterrupt;
                        if (first.compareAndSet(null, e)) {
                            failed[0] = isInterrupt ? INTERRUPTED : rank;
                            if (!apart && !(e instanceof FailureOfAllRanks)) {
                                onFailure.accept(e);
                            }
                        }
                    }
                };
        FutureTask<Void> own = new FutureTask<>(() -> guarded.accept(0), null);
        List<Future<?>> futures = new ArrayList<>(List.of(own));
        for (int i = 1; i < ranks; i++) {
            int rank = i;
            futures.add(threads.get(rank - 1).submit(() -> guarded.accept(rank)));
        }
        own.run();
        for (Future<?> future : futures) {
            poll(future::isDone);
            while (true) {
                try {
                    future.get();
                    break;
                } catch (ExecutionException e) {
                    break; // onFailure has thrown.
                } catch (InterruptedException e) {
                    interrupted[0] = true;
                    if (!apart && first.compareAndSet(null, e)) {
                        failed[0] = INTERRUPTED;
                        onFailure.accept(e); // Ends operations that wait for other ranks.
                    }
                }
            }
        }
        if (interrupted[0]) {
            Thread.currentThread().interrupt();
        }
        Throwable failure = first.get();
        if (failure != null && failed[0] == INTERRUPTED) {
            throw new CollectiveException(
                    "the thread was interrupted while it waited for the trainer's ranks, so their"
                            + " operations were aborted",
                    failure);
        }
        if (failure != null) {
            failure.addSuppressed(
                    new CollectiveException("rank " + failed[0] + " of the trainer failed"));
            throw RankWorkers.<RuntimeException>unchecked(failure);
        }
    }

    @SuppressWarnings("unchecked") // The type is erased: the caller throws the failure as it is.
    private static <E extends Throwable> E unchecked(Throwable failure) throws E {
        throw (E) failure;
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
