/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import org.djlx.nativeops.NoGradient;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The ranks of a group as threads that stay, each with something of its own, such as a part of a
 * model: what serves requests by several ranks. All ranks run the same tasks in the same order,
 * which is that of {@link #submit}; tasks may call the group. Gradients are not recorded.
 *
 * <pre>{@code
 * RankPool<Predictor<NDList, NDList>> pool =
 *         RankPool.start("mlp", ProcessGroups.local(4), group -> load(group).newPredictor(null));
 * List<float[]> outputs = pool.submit((group, predictor) -> predict(predictor, input)).get();
 * pool.close();
 * }</pre>
 *
 * <p>If a task throws on any rank, or what is each rank's own cannot be made, the pool has failed:
 * its group is no longer to be used, as the others may be anywhere in the task. All work that is
 * pending fails with the reason, and so does what is submitted later; the pool is to be closed and,
 * if need be, another started. So check what may be wrong with a task's input before it is
 * submitted.
 *
 * <p>Thread-safe.
 *
 * @param <S> what each rank has
 */
public final class RankPool<S extends AutoCloseable> implements AutoCloseable {

    private static final Logger LOG = LoggerFactory.getLogger(RankPool.class);
    // How long ranks go on after one has failed before they are interrupted: those that wait for it
    // in an operation learn of it at once.
    private static final long GRACE_MILLIS = 10_000;

    /**
     * What all ranks do.
     *
     * @param <S> what each rank has
     * @param <T> what a rank returns
     */
    @FunctionalInterface
    public interface RankTask<S, T> {

        /**
         * Runs on a rank's thread.
         *
         * @param group the rank's handle on the group
         * @param state what the rank has
         * @return the rank's result
         * @throws Exception if it fails, and the pool with it
         */
        T run(ProcessGroup group, S state) throws Exception;
    }

    private final String name;
    private final List<Rank> ranks = new ArrayList<>();

    // Guarded by this.
    private final Set<Call<?>> pending = new LinkedHashSet<>();
    private CollectiveException failure;
    private boolean closed;

    private RankPool(String name) {
        this.name = name;
    }

    /**
     * Starts a thread for each rank, has it make what is its own, and waits for all.
     *
     * @param name the pool's name, for its threads and for messages
     * @param groups the handles of all ranks, as {@link ProcessGroups#local(int)} returns them;
     *     they are the pool's from now on, which destroys them
     * @param maker makes what a rank has, on its thread; the pool closes it there
     * @param <S> what each rank has
     * @return the pool
     * @throws CollectiveException if it could not be made on a rank, which it names; what was made
     *     is closed, and the groups are destroyed
     * @throws IllegalArgumentException if an argument is null, or a rank's handle is missing or
     *     there twice
     */
    public static <S extends AutoCloseable> RankPool<S> start(
            String name, List<ProcessGroup> groups, ProcessGroups.RankBody<S> maker) {
        if (name == null || maker == null) {
            throw new IllegalArgumentException(
                    "RankPool: the " + (name == null ? "name" : "maker") + " is null");
        }
        if (groups == null || groups.isEmpty() || groups.stream().anyMatch(Objects::isNull)) {
            throw new IllegalArgumentException(
                    "RankPool: groups must hold the handles of all ranks, not " + groups);
        }
        int worldSize = groups.get(0).worldSize();
        long different = groups.stream().map(ProcessGroup::rank).distinct().count();
        if (groups.size() != worldSize || different != worldSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "RankPool: groups must hold the handles of all %d ranks, each once,"
                                    + " not %s",
                            worldSize, groups));
        }
        RankPool<S> pool = new RankPool<>(name);
        for (ProcessGroup group : groups) {
            pool.ranks.add(pool.new Rank(group));
        }
        boolean done = false;
        try {
            CompletableFuture<List<Void>> made =
                    pool.call(
                            rank -> {
                                rank.state = maker.run(rank.group);
                                return null;
                            });
            pool.ranks.forEach(rank -> rank.thread.start());
            join(made);
            done = true;
            return pool;
        } finally {
            if (!done) {
                pool.close();
            }
        }
    }

    private static void join(CompletableFuture<?> made) {
        try {
            made.get();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CollectiveException("RankPool: interrupted while the ranks started", e);
        } catch (ExecutionException e) {
            throw (CollectiveException) e.getCause(); // Calls fail with nothing else.
        }
    }

    /** What a rank does. */
    private interface Body<S extends AutoCloseable, T> {
        T run(RankPool<S>.Rank rank) throws Exception;
    }

    /** One task on all ranks. */
    private static final class Call<T> {

        final CompletableFuture<List<T>> future = new CompletableFuture<>();
        final List<T> results; // guarded by the pool, as left is
        int left;

        Call(int ranks) {
            results = new ArrayList<>(Collections.nCopies(ranks, null));
            left = ranks;
        }
    }

    private final class Rank {

        final ProcessGroup group;
        final Thread thread;
        final BlockingQueue<Runnable> queue = new LinkedBlockingQueue<>();
        S state; // the thread's own
        boolean ended; // the thread's own

        Rank(ProcessGroup group) {
            this.group = group;
            thread = new Thread(() -> NoGradient.run(this::run), name + "-rank-" + group.rank());
            thread.setDaemon(true);
        }

        private void run() {
            while (!ended) {
                try {
                    queue.take().run();
                } catch (InterruptedException e) {
                    LOG.debug("{} was interrupted while idle", thread.getName()); // It goes on.
                }
            }
        }

        <T> void run(Call<T> call, Body<S, T> body) {
            if (failure().isPresent()) {
                return; // The call has failed with it.
            }
            try {
                T result = body.run(this);
                done(call, group.rank(), result);
            } catch (Throwable t) { // Errors as well: memory may run out.
                fail(group.rank(), t);
                group.destroy(); // So that no rank waits for this one.
            }
        }

        void end() {
            ended = true;
            try {
                if (state != null) {
                    state.close();
                }
            } catch (Exception e) {
                LOG.warn("{}: what it has could not be closed", thread.getName(), e);
            } finally {
                group.destroy();
            }
        }
    }

    private <T> void done(Call<T> call, int rank, T result) {
        synchronized (this) {
            call.results.set(rank, result);
            if (--call.left > 0 || !pending.remove(call)) {
                return;
            }
        }
        call.future.complete(call.results);
    }

    private void fail(int rank, Throwable cause) {
        List<Call<?>> failed;
        synchronized (this) {
            if (failure != null) {
                return; // It comes of the first.
            }
            boolean speaks = cause instanceof CollectiveException;
            failure =
                    new CollectiveException(
                            String.format(
                                    "rank %d of %d of %s failed: %s",
                                    rank,
                                    ranks.size(),
                                    name,
                                    speaks ? cause.getMessage() : cause.toString()),
                            cause);
            failed = List.copyOf(pending);
            pending.clear();
        }
        failed.forEach(call -> call.future.completeExceptionally(failure));
    }

    /**
     * Queues a task for all ranks.
     *
     * @param task what each does
     * @param <T> what a rank returns
     * @return what the ranks returned, in rank order, when all have; or the {@link
     *     CollectiveException} with which the pool has failed, as soon as it has. What depends on
     *     it is run by a rank's thread, and must not wait for the pool
     * @throws IllegalStateException if the pool is closed
     */
    public <T> CompletableFuture<List<T>> submit(RankTask<S, T> task) {
        if (task == null) {
            throw new IllegalArgumentException(name + ": the task is null");
        }
        return call(rank -> task.run(rank.group, rank.state));
    }

    private <T> CompletableFuture<List<T>> call(Body<S, T> body) {
        Call<T> call = new Call<>(ranks.size());
        synchronized (this) {
            if (closed) {
                throw new IllegalStateException(name + " is closed");
            }
            if (failure == null) {
                pending.add(call);
                ranks.forEach(rank -> rank.queue.add(() -> rank.run(call, body)));
                return call.future;
            }
        }
        call.future.completeExceptionally(failure);
        return call.future;
    }

    /**
     * Returns how many ranks there are.
     *
     * @return the number
     */
    public int size() {
        return ranks.size();
    }

    /**
     * Returns with what the pool has failed.
     *
     * @return the failure, which names the first rank that failed; empty if none has
     */
    public synchronized Optional<CollectiveException> failure() {
        return Optional.ofNullable(failure);
    }

    /**
     * Waits for the tasks that were submitted, closes what the ranks have, and destroys the group.
     * When the pool has failed, ranks that are still in a task after 10 seconds are interrupted.
     * May be called again; returns when all is closed. If the calling thread is interrupted, the
     * ranks are, and are waited for all the same.
     *
     * @throws IllegalStateException if called by a rank's thread, which would wait for itself
     */
    @Override
    public void close() {
        if (ranks.stream().anyMatch(rank -> rank.thread == Thread.currentThread())) {
            throw new IllegalStateException(name + ": a rank cannot close the pool it is of");
        }
        synchronized (this) {
            if (!closed) {
                closed = true;
                ranks.forEach(rank -> rank.queue.add(rank::end));
            }
        }
        boolean interrupted = false;
        for (Rank rank : ranks) {
            if (rank.thread.getState() == Thread.State.NEW) {
                rank.end(); // There were no threads left.
            }
            while (rank.thread.isAlive()) {
                try {
                    rank.thread.join(failure().isPresent() ? GRACE_MILLIS : 1_000);
                    if (rank.thread.isAlive() && failure().isPresent()) {
                        rank.thread.interrupt();
                    }
                } catch (InterruptedException e) {
                    interrupted = true;
                    ranks.forEach(other -> other.thread.interrupt());
                }
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public String toString() {
        return name + " on " + Arrays.toString(ranks.stream().map(rank -> rank.group).toArray());
    }
}
