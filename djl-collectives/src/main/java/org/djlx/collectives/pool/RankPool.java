/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.pool;

import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.host.Required;
import org.djlx.nativeops.torch.NoGradient;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The ranks of a group, each with something of its own, such as a part of a model, which serve
 * requests together. All ranks serve the same requests in the same order, which is that of {@link
 * #submit}, and may call the group meanwhile. Gradients are not recorded.
 *
 * <p>Ranks are threads of this JVM that stay:
 *
 * <pre>{@code
 * RankPool<float[], float[]> pool =
 *         RankPool.start("mlp", ProcessGroups.local(4), group -> new MlpPart(group));
 * float[] output = pool.submit(input).get();
 * pool.close();
 * }</pre>
 *
 * <p>or processes of one host, of which rank 0 takes the requests and the others follow. All run
 * the same program:
 *
 * <pre>{@code
 * ProcessGroup group = ProcessGroups.init("shm");
 * try (RankPool<float[], float[]> pool =
 *         RankPool.join("mlp", group, codec, own -> new MlpPart(own))) {
 *     if (group.rank() == 0) {
 *         float[] output = pool.submit(input).get();
 *     }
 * } // The others stay here until rank 0 closes its pool.
 * }</pre>
 *
 * <p>If a rank throws or dies, or what is each rank's own cannot be made, the pool has failed: its
 * group is no longer to be used, as the others may be anywhere in the request. All work that is
 * pending fails with the reason, and so does what is submitted later; the pool is to be closed and,
 * if need be, another started, for which processes are to be started again. So check what may be
 * wrong with a request before it is submitted.
 *
 * <p>Thread-safe.
 *
 * @param <R> what a request is
 * @param <T> what comes of it
 */
public final class RankPool<R, T> implements AutoCloseable {

    private static final Logger LOG = LoggerFactory.getLogger(RankPool.class);
    // How long ranks go on after one has failed before they are interrupted: those that wait for it
    // in an operation learn of it at once.
    private static final long GRACE_MILLIS = 10_000;
    // How long a rank with a GPU looks for the next request before it sleeps.
    private static final long SPIN_NANOS = 500_000;

    private final String name;
    private final int worldSize;
    private final List<Rank> ranks; // of this JVM
    private final RequestCodec<R> codec; // null if all ranks are threads of it, as the channel is
    private final RequestChannel channel;
    private final CompletableFuture<CollectiveException> failed = new CompletableFuture<>();

    // Guarded by this.
    private final Set<Call<?>> pending = new LinkedHashSet<>();
    private CollectiveException failure;
    private Thread breaking; // destroys the group when another process has failed
    private volatile Thread losing; // the group's, which has told of that
    private boolean closed;

    private RankPool(
            String name, List<ProcessGroup> groups, RequestCodec<R> codec, RequestChannel channel) {
        this.name = name;
        this.codec = codec;
        this.channel = channel;
        worldSize = groups.get(0).worldSize();
        ranks = groups.stream().map(Rank::new).toList();
    }

    /**
     * Starts a thread for each rank, has it make what is its own, and waits for all.
     *
     * @param name the pool's name, for its threads and for messages
     * @param groups the handles of all ranks, as {@link ProcessGroups#local(int)} returns them;
     *     they are the pool's from now on, which destroys them
     * @param maker makes what a rank has, on its thread; the pool closes it there
     * @param <R> what a request is
     * @param <T> what comes of it
     * @return the pool
     * @throws CollectiveException if it could not be made on a rank, which it names; what was made
     *     is closed, and the groups are destroyed
     * @throws IllegalArgumentException if an argument is null, or a rank's handle is missing or
     *     there twice
     */
    public static <R, T> RankPool<R, T> start(
            String name,
            List<ProcessGroup> groups,
            ProcessGroups.RankBody<? extends RankWorker<R, T>> maker) {
        Required.argument("RankPool: the name", name);
        Required.argument("RankPool: the maker", maker);
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
        RankPool<R, T> pool = new RankPool<>(name, groups, null, null);
        pool.begin(rank -> rank.make(maker));
        return pool;
    }

    /**
     * Makes this process a rank of a pool whose ranks are processes of one host, which all call
     * this: starts a thread, has it make what is this rank's own, and waits for all ranks.
     *
     * <p>Rank 0 alone takes requests, and sends them to the others through shared memory, whatever
     * the group's backend. These serve them until rank 0 closes its pool. No timeout bounds their
     * wait for a request, in which they sleep.
     *
     * @param name the pool's name, for its threads and for messages
     * @param group this process's handle on the group of all ranks; it is the pool's from now on,
     *     which destroys it, also if this throws. Its timeout bounds how long rank 0 waits for the
     *     others to take a request; to make what is their own, they may take as long as they need
     * @param codec how requests get to the other processes
     * @param maker makes what a rank has, on its thread; the pool closes it there
     * @param <R> what a request is
     * @param <T> what comes of it
     * @return the pool
     * @throws CollectiveException on all ranks, if they are not on one host, or if it could not be
     *     made on one of them; what was made is closed
     * @throws IllegalArgumentException if an argument is null
     */
    public static <R, T> RankPool<R, T> join(
            String name,
            ProcessGroup group,
            RequestCodec<R> codec,
            ProcessGroups.RankBody<? extends RankWorker<R, T>> maker) {
        Required.argument("RankPool: the name", name);
        Required.argument("RankPool: the group", group);
        Required.argument("RankPool: the codec", codec);
        Required.argument("RankPool: the maker", maker);
        RankPool<R, T> pool = pool(name, group, codec);
        RequestChannel channel = pool.channel;
        if (pool.isFollower()) {
            pool.begin(
                    rank -> {
                        rank.make(maker);
                        channel.awaitBegin();
                        rank.queue.add(rank::follow);
                        return null;
                    });
        } else {
            pool.begin(
                    rank -> {
                        channel.listen(pool::lose);
                        rank.make(maker);
                        channel.begin();
                        return null;
                    });
        }
        return pool;
    }

    private static <R, T> RankPool<R, T> pool(
            String name, ProcessGroup group, RequestCodec<R> codec) {
        boolean done = false;
        try {
            RequestChannel channel = RequestChannel.open(group);
            RankPool<R, T> pool = new RankPool<>(name, List.of(group), codec, channel);
            done = true;
            return pool;
        } finally {
            if (!done) {
                group.destroy();
            }
        }
    }

    /** Starts the ranks' threads and waits until all have done something first. */
    private void begin(Body<R, T, Void> body) {
        boolean done = false;
        try {
            CompletableFuture<Void> begun = call(body);
            ranks.forEach(rank -> rank.thread.start());
            begun.get();
            done = true;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CollectiveException("RankPool: interrupted while the ranks started", e);
        } catch (ExecutionException e) {
            throw (CollectiveException) e.getCause(); // Calls fail with nothing else.
        } finally {
            if (!done) {
                close();
            }
        }
    }

    /** What a rank does. */
    private interface Body<R, T, V> {
        V run(RankPool<R, T>.Rank rank) throws Exception;
    }

    /** Something that all ranks of this JVM do. */
    private static final class Call<V> {

        final CompletableFuture<V> future = new CompletableFuture<>();
        V result; // that of rank 0; guarded by the pool, as left is
        int left;

        Call(int ranks) {
            left = ranks;
        }
    }

    private final class Rank {

        final ProcessGroup group;
        final Thread thread;
        final BlockingQueue<Runnable> queue = new LinkedBlockingQueue<>();
        RankWorker<R, T> worker; // the thread's own
        boolean ended; // the thread's own

        Rank(ProcessGroup group) {
            this.group = group;
            thread = new Thread(() -> NoGradient.run(this::run), name + "-rank-" + group.rank());
            thread.setDaemon(true);
        }

        private void run() {
            while (!ended) {
                try {
                    next().run();
                } catch (InterruptedException e) {
                    LOG.debug("{} was interrupted while idle", thread.getName()); // It goes on.
                }
            }
        }

        /** Requests to GPUs follow each other so closely that waking up would be felt. */
        private Runnable next() throws InterruptedException {
            boolean spins = group.device().isGpu();
            long start = System.nanoTime();
            Runnable next = queue.poll();
            while (next == null && spins && System.nanoTime() - start < SPIN_NANOS) {
                Thread.onSpinWait();
                next = queue.poll();
            }
            return next == null ? queue.take() : next;
        }

        Void make(ProcessGroups.RankBody<? extends RankWorker<R, T>> maker) throws Exception {
            worker = maker.run(group);
            if (worker == null) {
                throw new IllegalStateException("the maker of what a rank has returned null");
            }
            return null;
        }

        <V> void run(Call<V> call, Body<R, T, V> body) {
            if (failure().isPresent()) {
                return; // The call has failed with it.
            }
            try {
                V result = body.run(this);
                done(call, group.rank(), result);
            } catch (Throwable t) { // Errors as well: memory may run out.
                leave(t);
            }
        }

        /** Serves what rank 0 sends, until there is no more. */
        void follow() {
            try {
                byte[] request = channel.receive();
                while (request != null) {
                    worker.serve(codec.decode(request));
                    request = channel.receive();
                }
            } catch (Throwable t) {
                leave(t);
            }
            end();
        }

        private void leave(Throwable cause) {
            try {
                String reason = reason(cause);
                fail(group.rank(), reason, cause);
                if (isFollower()) {
                    channel.fail(reason);
                }
            } finally {
                group.destroy(); // So that no rank waits for this one.
            }
        }

        void end() {
            ended = true;
            try {
                if (channel != null && !isFollower() && failure().isEmpty()) {
                    channel.end();
                }
            } catch (RuntimeException e) {
                LOG.warn("{}: the other ranks do not know that it is closed", name, e);
            }
            try {
                if (worker != null) {
                    worker.close();
                }
            } catch (RuntimeException e) {
                LOG.warn("{}: what it has could not be closed", thread.getName(), e);
            } finally {
                group.destroy();
                if (channel != null) {
                    channel.close();
                }
            }
        }
    }

    private <V> void done(Call<V> call, int rank, V result) {
        synchronized (this) {
            if (rank == 0) {
                call.result = result;
            }
            if (--call.left > 0 || !pending.remove(call)) {
                return;
            }
        }
        call.future.complete(call.result);
    }

    private static String reason(Throwable cause) {
        try {
            return cause instanceof CollectiveException ? cause.getMessage() : cause.toString();
        } catch (RuntimeException e) { // Whose own fault that is must not hide the failure.
            return cause.getClass().getName();
        }
    }

    /** Fails what is pending, unless that was done before, which it then comes of. */
    private boolean fail(int rank, String reason, Throwable cause) {
        List<Call<?>> calls;
        CollectiveException first =
                new CollectiveException(
                        String.format(
                                "rank %d of %d of %s failed: %s", rank, worldSize, name, reason),
                        cause);
        synchronized (this) {
            if (failure != null) {
                return false;
            }
            failure = first;
            calls = List.copyOf(pending);
            pending.clear();
        }
        calls.forEach(call -> call.future.completeExceptionally(first));
        failed.complete(first);
        return true;
    }

    /**
     * On rank 0: another process has failed. Its reason comes before what follows of it, and is all
     * that is known: no cause would say more.
     */
    private void lose(int rank, String reason) {
        losing = Thread.currentThread();
        if (fail(rank, reason, null)) {
            synchronized (this) {
                // By itself: this thread is one of the group's.
                breaking = new Thread(ranks.get(0).group::destroy, name + "-failed");
                breaking.setDaemon(true);
                breaking.start();
            }
        }
    }

    /**
     * Queues a request for all ranks.
     *
     * @param request what they serve
     * @return what rank 0 returned, when all ranks of this JVM have; or the {@link
     *     CollectiveException} with which the pool has failed, as soon as it has, or one that has
     *     that as its cause if it had failed before. What depends on it is run by a thread of the
     *     pool, and must not wait for it
     * @throws IllegalStateException if the pool is closed, or this process is not rank 0
     */
    public CompletableFuture<T> submit(R request) {
        if (request == null) {
            throw new IllegalArgumentException(name + ": the request is null");
        }
        if (isFollower()) {
            throw new IllegalStateException(
                    String.format(
                            "%s: requests are for rank 0, which rank %d follows",
                            name, ranks.get(0).group.rank()));
        }
        if (channel == null) {
            return call(rank -> rank.worker.serve(request));
        }
        byte[] bytes = codec.encode(request);
        if (bytes == null) {
            throw new IllegalArgumentException(
                    name + ": the codec has encoded " + request + " as null, not as bytes");
        }
        return call(
                rank -> {
                    channel.send(bytes);
                    return rank.worker.serve(request);
                });
    }

    private <V> CompletableFuture<V> call(Body<R, T, V> body) {
        Call<V> call = new Call<>(ranks.size());
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
        call.future.completeExceptionally(
                new CollectiveException(
                        name
                                + " has failed before this request and takes no more; close it and"
                                + " start another: "
                                + failure.getMessage(),
                        failure));
        return call.future;
    }

    /**
     * Returns how many ranks there are.
     *
     * @return the number
     */
    public int size() {
        return worldSize;
    }

    /**
     * Tells whether this process follows rank 0, which is another and takes the requests.
     *
     * @return whether it does; false if ranks are threads
     */
    public boolean isFollower() {
        return channel != null && ranks.get(0).group.rank() > 0;
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
     * Tells when the pool fails, also if there is nothing to do for it then.
     *
     * @return completes with the {@link #failure}; never if there is none. What depends on it is
     *     run by a thread of the pool, and must not wait for it
     */
    public CompletionStage<CollectiveException> whenFailed() {
        return failed.minimalCompletionStage();
    }

    /**
     * Waits until the pool has ended: until it is closed, on rank 0 if this process follows it.
     *
     * @throws CollectiveException if it has failed
     * @throws InterruptedException if the thread is interrupted
     */
    public void awaitEnd() throws InterruptedException {
        for (Rank rank : ranks) {
            rank.thread.join();
        }
        synchronized (this) {
            if (failure != null) {
                throw new CollectiveException(failure.getMessage(), failure);
            }
        }
    }

    /**
     * Waits for the requests that were submitted, closes what the ranks have, and destroys the
     * group. When the pool has failed, ranks that are still in a request after 10 seconds are
     * interrupted. May be called again; returns when all is closed. If the calling thread is
     * interrupted, the ranks are, and are waited for all the same.
     *
     * <p>On processes that follow rank 0, this waits until that closes its pool or is gone, as
     * {@link #awaitEnd} does, and throws nothing.
     *
     * @throws IllegalStateException if called by a thread of the pool, such as one that runs what
     *     depends on a request or on {@link #whenFailed}: it would wait for itself
     */
    @Override
    public void close() {
        Thread caller = Thread.currentThread();
        if (caller == losing || ranks.stream().anyMatch(rank -> rank.thread == caller)) {
            throw new IllegalStateException(
                    name + ": a thread of the pool cannot close it; let another one do so");
        }
        synchronized (this) {
            if (!closed) {
                closed = true;
                ranks.forEach(rank -> rank.queue.add(rank::end));
            }
        }
        // There may have been no threads left for some, for which the others may wait.
        ranks.stream()
                .filter(rank -> rank.thread.getState() == Thread.State.NEW)
                .forEach(Rank::end);
        boolean interrupted = false;
        for (Rank rank : ranks) {
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
        interrupted |= awaitBreaking();
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Returns whether this thread was interrupted meanwhile. */
    private boolean awaitBreaking() {
        Thread thread;
        synchronized (this) {
            thread = breaking;
        }
        boolean interrupted = false;
        while (thread != null && thread.isAlive()) {
            try {
                thread.join();
            } catch (InterruptedException e) {
                interrupted = true; // It has an end: what it waits for is told that it is over.
            }
        }
        return interrupted;
    }

    @Override
    public String toString() {
        return name + " on " + Arrays.toString(ranks.stream().map(rank -> rank.group).toArray());
    }
}
