// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.pool;

import java.time.Duration;
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
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.host.FailureText;
import org.djlx.nativeops.host.LongCalls;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.NoGradient;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The ranks of a group, each with a {@link RankWorker} such as a shard of a model, that serve
 * requests together. All ranks serve the same requests in the order of {@link #submit}, and may
 * issue operations on the group. Gradients are not recorded.
 *
 * <p>Ranks are long-lived threads of this JVM:
 *
 * <pre>{@code
 * RankPool<float[], float[]> pool =
 *         RankPool.start("mlp", ProcessGroups.local(4), group -> new MlpPart(group));
 * float[] output = pool.submit(input).get();
 * pool.close();
 * }</pre>
 *
 * <p>or processes on one host that run the same program. Rank 0 takes requests; the other ranks
 * follow it:
 *
 * <pre>{@code
 * ProcessGroup group = ProcessGroups.init("shm");
 * try (RankPool<float[], float[]> pool =
 *         RankPool.join("mlp", group, codec, own -> new MlpPart(own))) {
 *     if (group.rank() == 0) {
 *         float[] output = pool.submit(input).get();
 *     }
 * } // close() on the other ranks waits until rank 0 closes its pool
 * }</pre>
 *
 * <p>Failure:
 *
 * <ul>
 *   <li>The pool fails if a rank throws or dies, or its worker cannot be created. The group is then
 *       unusable, because the ranks may be at different points of a request.
 *   <li>All pending and later requests fail with the first failure as the reason.
 *   <li>Close a failed pool. To go on, start another one; ranks that are processes must be
 *       restarted.
 * </ul>
 *
 * <p>Thread-safe.
 */
public final class RankPool<R, T> implements AutoCloseable {

    private static final Logger LOG = LoggerFactory.getLogger(RankPool.class);
    // How long the other ranks may run after one has failed, before close() interrupts them. Ranks
    // that wait for it in an operation fail at once.
    private static final long GRACE_MILLIS = 10_000;
    // How long a rank with a GPU polls for the next request before it sleeps.
    private static final long SPIN_NANOS = 500_000;
    // What a failure takes to be described and to reach all callers, with a margin. Each rank has
    // its own: while one rank fails for want of memory, another may still fill the heap.
    private static final int RESERVE_BYTES = 256 << 10;
    // Between attempts to fail the calls while the heap is used up.
    private static final long RETRY_NANOS = 50_000_000;
    private static final Duration FOREVER = Duration.ofDays(3650);

    private final String name;
    private final int worldSize;
    private final List<Rank> ranks; // of this JVM
    private final RequestCodec<R> codec; // null if ranks are threads
    private final RequestChannel channel; // null if ranks are threads
    private final CompletableFuture<CollectiveException> failed = new CompletableFuture<>();

    // Guarded by this.
    private final Set<Call<?>> pending = new LinkedHashSet<>();
    private CollectiveException failure;
    private int running; // ranks of this JVM whose thread has not ended
    private Thread breaking; // destroys the group after another process has failed
    private volatile Thread reporter; // the group's thread that reported that failure
    private boolean closed;

    private RankPool(
            String name, List<ProcessGroup> groups, RequestCodec<R> codec, RequestChannel channel) {
        this.name = name;
        this.codec = codec;
        this.channel = channel;
        worldSize = groups.get(0).worldSize();
        ranks = groups.stream().map(Rank::new).toList();
        running = ranks.size();
    }

    /**
     * Starts a pool whose ranks are threads of this JVM. Starts one thread per rank, whose current
     * GPU is the rank's, creates the workers on them, and returns when all workers exist.
     *
     * @param groups the handles of all ranks, as {@link ProcessGroups#local(int)} returns them; the
     *     pool owns and destroys them
     * @param maker creates a rank's worker, on the rank's thread; the pool closes the worker there
     * @throws CollectiveException if a worker cannot be created; names the rank. All workers are
     *     closed and the groups destroyed
     * @throws IllegalArgumentException if an argument is null, or {@code groups} does not have each
     *     rank exactly once
     */
    public static <R, T> RankPool<R, T> start(
            String name,
            List<ProcessGroup> groups,
            ProcessGroups.RankBody<? extends RankWorker<R, T>> maker) {
        Required.argument("RankPool: name", name);
        Required.argument("RankPool: maker", maker);
        if (groups == null || groups.isEmpty() || groups.stream().anyMatch(Objects::isNull)) {
            throw new IllegalArgumentException(
                    "RankPool: groups must contain one handle per rank, without null, but is "
                            + groups);
        }
        int worldSize = groups.get(0).worldSize();
        long different = groups.stream().map(ProcessGroup::rank).distinct().count();
        if (groups.size() != worldSize || different != worldSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "RankPool: groups must contain each of the %d ranks exactly once, but"
                                    + " is %s",
                            worldSize, groups));
        }
        RankPool<R, T> pool = new RankPool<>(name, groups, null, null);
        pool.begin(rank -> rank.make(maker));
        return pool;
    }

    /**
     * Joins a pool whose ranks are processes on one host. All ranks call it. Starts a thread,
     * creates this rank's worker on it, and returns when all ranks have their worker.
     *
     * <p>Only rank 0 accepts requests. It sends them to the other ranks through shared memory,
     * whatever the group's backend. The other ranks serve them until rank 0 closes its pool. They
     * sleep while they wait for a request, without a timeout.
     *
     * @param group this process's handle on the group of all ranks; the pool owns it and destroys
     *     it, also if this method throws. Its timeout bounds how long rank 0 waits for the others
     *     to accept a request; creating workers has no timeout
     * @param maker creates this rank's worker, on the rank's thread; the pool closes the worker
     *     there
     * @throws CollectiveException on all ranks, if they are not on one host or a worker cannot be
     *     created; all workers are closed
     */
    public static <R, T> RankPool<R, T> join(
            String name,
            ProcessGroup group,
            RequestCodec<R> codec,
            ProcessGroups.RankBody<? extends RankWorker<R, T>> maker) {
        Required.argument("RankPool: name", name);
        Required.argument("RankPool: group", group);
        Required.argument("RankPool: codec", codec);
        Required.argument("RankPool: maker", maker);
        RankPool<R, T> pool = pool(name, group, codec);
        RequestChannel channel = pool.channel;
        pool.begin(
                rank -> {
                    channel.listen(pool::lose);
                    rank.make(maker);
                    if (pool.isFollower()) {
                        channel.awaitBegin();
                        rank.queue.add(rank::follow);
                    } else {
                        channel.begin();
                    }
                    return null;
                });
        return pool;
    }

    private static <R, T> RankPool<R, T> pool(
            String name, ProcessGroup group, RequestCodec<R> codec) {
        try {
            return new RankPool<>(name, List.of(group), codec, RequestChannel.open(group));
        } catch (Throwable e) {
            group.destroy();
            throw e;
        }
    }

    /** Starts the ranks' threads and waits until all have run a first body. */
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
            throw (CollectiveException) e.getCause(); // The only type with which calls fail.
        } finally {
            if (!done) {
                close();
            }
        }
    }

    /** Code that runs on a rank's thread. */
    private interface Body<R, T, V> {
        V run(RankPool<R, T>.Rank rank) throws Exception;
    }

    /** A body that all ranks of this JVM run. */
    private static final class Call<V> {

        final CompletableFuture<V> future = new CompletableFuture<>();
        V result; // of rank 0; guarded by the pool
        int left; // ranks that have not finished; guarded by the pool

        Call(int ranks) {
            left = ranks;
        }
    }

    private final class Rank {

        final ProcessGroup group;
        final Thread thread;
        final BlockingQueue<Runnable> queue = new LinkedBlockingQueue<>();
        final CollectiveException outOfMemory; // made while there is memory for its text
        volatile byte[] reserve = new byte[RESERVE_BYTES]; // freed when the rank fails
        RankWorker<R, T> worker; // confined to the thread
        boolean ended; // confined to the thread

        Rank(ProcessGroup group) {
            this.group = group;
            thread = new Thread(() -> NoGradient.run(this::run), name + "-rank-" + group.rank());
            thread.setDaemon(true);
            outOfMemory =
                    failureOf(
                            group.rank(),
                            "java.lang.OutOfMemoryError, which left no memory to say more",
                            null);
        }

        private void run() {
            try {
                while (!ended) {
                    runNext();
                }
            } finally {
                synchronized (RankPool.this) {
                    running--;
                    RankPool.this.notifyAll();
                }
            }
        }

        private void runNext() {
            try {
                next().run();
            } catch (InterruptedException e) {
                LOG.debug("{} was interrupted while idle", thread.getName());
            } catch (OutOfMemoryError e) { // Of next(): the queue needs memory to wait.
                LockSupport.parkNanos(RETRY_NANOS);
            }
        }

        /**
         * Returns the next task. With a GPU it polls first, because waking up takes noticeable
         * time.
         */
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
            CudaDevice.makeCurrent(group.device());
            worker = maker.run(group);
            if (worker == null) {
                throw new IllegalStateException(
                        "the maker returned null; it must return a RankWorker");
            }
            return null;
        }

        <V> void run(Call<V> call, Body<R, T, V> body) {
            if (hasFailed()) {
                return; // The call has already failed.
            }
            try {
                V result = body.run(this);
                done(call, group.rank(), result);
            } catch (Throwable t) { // Includes errors, such as OutOfMemoryError.
                leave(t);
            }
        }

        /** Serves the requests that rank 0 sends, until it closes its pool. */
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
            fail(this, group.rank(), null, cause);
            boolean left = false;
            while (!left) {
                try {
                    if (isFollower()) {
                        channel.fail(reason(cause));
                    }
                    group.destroy(); // Otherwise other ranks would wait for this one.
                    left = true;
                } catch (OutOfMemoryError e) {
                    LockSupport.parkNanos(RETRY_NANOS);
                }
            }
        }

        /** Waits for the thread. If the pool has failed, interrupts it after the grace period. */
        void join() throws InterruptedException {
            while (thread.isAlive()) {
                boolean failed = hasFailed();
                thread.join(failed ? GRACE_MILLIS : 1_000);
                if (failed) {
                    thread.interrupt();
                }
            }
        }

        void end() {
            ended = true;
            try {
                if (channel != null && !isFollower() && !hasFailed()) {
                    channel.end();
                }
            } catch (RuntimeException e) {
                LOG.warn("{}: cannot announce the end of the pool to the other ranks", name, e);
            }
            try {
                if (worker != null) {
                    worker.close();
                }
            } catch (Throwable t) { // Of the user's code: it must not keep the others waiting.
                Throwable cause = FailureText.printable(t);
                LOG.warn("{}: cannot close the worker", thread.getName(), cause);
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
        return cause instanceof CollectiveException
                ? FailureText.message(cause)
                : FailureText.of(cause);
    }

    /**
     * Fails all pending calls, for a failure that a rank of this JVM found; the reason is that of
     * the cause if null. Returns false if the pool has already failed; the first failure is the
     * cause. Tries again for as long as the heap is used up, because callers wait without a
     * timeout.
     */
    private boolean fail(Rank own, int rank, String reason, Throwable cause) {
        own.reserve = null;
        boolean first = setFailure(own, rank, reason, cause);
        boolean done = false;
        while (!done) {
            try {
                failCalls();
                done = true;
            } catch (OutOfMemoryError e) {
                LockSupport.parkNanos(RETRY_NANOS);
            }
        }
        return first;
    }

    private synchronized boolean setFailure(Rank own, int rank, String reason, Throwable cause) {
        if (failure != null) {
            return false;
        }
        try {
            failure = failureOf(rank, reason == null ? reason(cause) : reason, cause);
        } catch (OutOfMemoryError e) {
            failure = own.outOfMemory;
        }
        notifyAll();
        return true;
    }

    private CollectiveException failureOf(int rank, String reason, Throwable cause) {
        return new CollectiveException(
                String.format("%s: rank %d of %d failed: %s", name, rank, worldSize, reason),
                cause);
    }

    /** Completes all pending calls with the failure. Idempotent. */
    private void failCalls() {
        CollectiveException first;
        List<Call<?>> calls;
        synchronized (this) {
            first = failure;
            calls = List.copyOf(pending);
        }
        calls.forEach(call -> call.future.completeExceptionally(first));
        failed.complete(first);
        synchronized (this) {
            pending.clear();
        }
    }

    /**
     * Fails the pool because another process has failed: on rank 0, that of a follower, whose
     * reason arrives before any follow-up failure; on a follower, that of rank 0, which leaves the
     * group if any rank has failed. There is no cause object to attach.
     */
    private void lose(int rank, String reason) {
        reporter = Thread.currentThread();
        if (fail(ranks.get(0), rank, reason, null)) {
            synchronized (this) {
                // On a thread of its own, because this thread belongs to the group.
                breaking = new Thread(ranks.get(0).group::destroy, name + "-failed");
                breaking.setDaemon(true);
                breaking.start();
            }
        }
    }

    /**
     * Submits a request to all ranks.
     *
     * <p>The future completes with rank 0's result when all ranks of this JVM have served the
     * request. It fails with a {@link CollectiveException} as soon as the pool fails, or at once if
     * the pool has failed before. Dependent actions run on a thread of the pool and must not block.
     *
     * @throws IllegalStateException if the pool is closed, or this process is not rank 0
     */
    public CompletableFuture<T> submit(R request) {
        if (request == null) {
            throw new IllegalArgumentException(name + ": the request is null");
        }
        if (isFollower()) {
            throw new IllegalStateException(
                    String.format(
                            "%s: rank %d does not accept requests; submit them on rank 0",
                            name, ranks.get(0).group.rank()));
        }
        if (channel == null) {
            return call(rank -> rank.worker.serve(request));
        }
        byte[] bytes = codec.encode(request);
        if (bytes == null) {
            throw new IllegalArgumentException(
                    name + ": the codec encoded the request " + request + " as null");
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
                        "%s failed before this request; close it and start another: %s"
                                .formatted(name, failure.getMessage()),
                        failure));
        return call.future;
    }

    /** {@return the number of ranks} */
    public int size() {
        return worldSize;
    }

    /**
     * {@return whether this process follows rank 0, which is another process; false if ranks are
     * threads}
     */
    public boolean isFollower() {
        return channel != null && ranks.get(0).group.rank() > 0;
    }

    /**
     * {@return the pool's failure, which names the first rank that failed; empty if the pool has
     * not failed}
     */
    public synchronized Optional<CollectiveException> failure() {
        return Optional.ofNullable(failure);
    }

    private synchronized boolean hasFailed() {
        return failure != null;
    }

    /**
     * {@return a stage that completes with the {@link #failure} when the pool fails, even while it
     * is idle} It never completes if the pool does not fail. Dependent actions run on a thread of
     * the pool and must not block.
     */
    public CompletionStage<CollectiveException> whenFailed() {
        return failed.minimalCompletionStage();
    }

    /**
     * Waits until the pool is closed or has failed. On a process that follows rank 0, waits until
     * rank 0 closes its pool. {@link #close} ends a rank that is still in a request.
     *
     * @throws CollectiveException if the pool has failed
     */
    public void awaitEnd() throws InterruptedException {
        synchronized (this) {
            while (running > 0 && failure == null) {
                wait();
            }
            if (failure != null) {
                throw new CollectiveException(failure.getMessage(), failure);
            }
        }
    }

    /**
     * Waits for the submitted requests, closes the workers, and destroys the group. Idempotent.
     *
     * <ul>
     *   <li>If the pool has failed, ranks that are still in a request after 10 s are interrupted.
     *   <li>If the calling thread is interrupted, it interrupts the ranks and keeps waiting for
     *       them.
     *   <li>On a process that follows rank 0, it waits until rank 0 closes its pool or is gone,
     *       like {@link #awaitEnd}, but does not throw.
     * </ul>
     *
     * @throws IllegalStateException if a thread of the pool calls it, such as one that runs a
     *     dependent action, because it would wait for itself
     */
    @Override
    public void close() {
        Thread caller = Thread.currentThread();
        if (caller == reporter || ranks.stream().anyMatch(rank -> rank.thread == caller)) {
            throw new IllegalStateException(
                    name + ": a thread of the pool must not close it; close it on another thread");
        }
        synchronized (this) {
            if (!closed) {
                ranks.forEach(rank -> rank.queue.add(rank::end));
                closed = true;
            }
        }
        // Ranks whose thread could not be started; other ranks may wait for them.
        ranks.stream()
                .filter(rank -> rank.thread.getState() == Thread.State.NEW)
                .forEach(Rank::end);
        boolean interrupted = false;
        for (Rank rank : ranks) {
            while (rank.thread.isAlive()) {
                try {
                    rank.join();
                } catch (InterruptedException e) {
                    interrupted = true;
                    ranks.forEach(other -> other.thread.interrupt());
                }
            }
        }
        Thread last;
        synchronized (this) {
            last = breaking;
        }
        if (last != null) {
            LongCalls.join(List.of(last), FOREVER); // It ends after all operations have failed.
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
