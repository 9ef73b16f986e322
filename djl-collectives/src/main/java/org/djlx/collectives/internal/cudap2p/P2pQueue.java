// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.gpu.Batch;
import org.djlx.collectives.internal.gpu.EventPool;
import org.djlx.collectives.internal.gpu.GpuGroup;
import org.djlx.collectives.internal.gpu.GpuTurns;
import org.djlx.collectives.internal.gpu.GroupExtension;
import org.djlx.collectives.internal.gpu.Watchdog;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.slf4j.LoggerFactory;

/**
 * Runs operations on the callers' current streams, in order with the collectives on the group's
 * stream, and publishes all calls of the group.
 *
 * <ul>
 *   <li>The host does not wait for other hosts: it publishes a call and enqueues it. The last rank
 *       to call, or the watchdog, detects a mismatch, which breaks the group on all ranks.
 *   <li>With {@code DebugLevel.DETAIL}, the hosts agree on a call before it is enqueued. A mismatch
 *       then fails that call only.
 *   <li>If the group breaks, all waits of kernels for other ranks end.
 * </ul>
 */
final class P2pQueue implements GroupExtension {

    private static final long PEER_POLL_NANOS = 100_000_000; // a poll reads a file for each rank

    private static final AtomicLong PLACES = new AtomicLong(); // of hooks of graphs

    private static final Set<P2pQueue> OPEN = new HashSet<>(); // guarded by itself

    static {
        try {
            Runtime.getRuntime().addShutdownHook(new Thread(P2pQueue::exit, "cuda_p2p-exit"));
        } catch (IllegalStateException e) {
            LoggerFactory.getLogger(P2pQueue.class)
                    .debug("no shutdown hook: the JVM is exiting", e);
        }
    }

    private final GroupContext context;
    private final CudaDevice device;
    private final boolean verify;
    private final HostSync hosts;
    private final WaitStatus waits; // closed after this
    private final GpuGroup group; // has the group's stream, and watches over all operations
    private final RegionHandshake.Place place;
    private final EventPool events;
    private final CurrentStreams currentStreams;
    private final CudaEvent before; // after the earlier work on the group's stream
    private volatile long called; // number of the last published operation
    private volatile boolean replayed; // an operation is in a graph
    private volatile long peersPolled = System.nanoTime();

    // Held while an operation or a graph is launched, so that each follows all earlier ones.
    private final ReentrantLock order = new ReentrantLock();

    // Guarded by the order.
    private final Replays replays = new Replays();
    private long launches; // count on the group's stream when an operation last waited for it
    private GpuTurns.Launched last; // the last operation here, or launch of a graph; or null
    private boolean joined; // the group's stream waits for the last operation

    private volatile CollectiveException broken;

    /**
     * Creates the queue. It closes the callers' streams with itself, and leaves the place when it
     * is broken; {@code verify}: ranks agree on a call before it is enqueued.
     */
    P2pQueue(
            GroupContext context,
            CudaDevice device,
            boolean verify,
            HostSync hosts,
            CurrentStreams currentStreams,
            WaitStatus waits,
            GpuGroup group,
            RegionHandshake.Place place) {
        this.context = context;
        this.device = device;
        this.verify = verify;
        this.hosts = hosts;
        this.waits = waits;
        this.group = group;
        this.place = place;
        this.currentStreams = currentStreams;
        events = new EventPool(device);
        before = CudaEvent.create(device);
        synchronized (OPEN) {
            OPEN.add(this);
        }
    }

    @FunctionalInterface
    interface Body {

        /**
         * Enqueues the operation. The GPU's context is current. {@code captured}: the stream is
         * being captured into a graph.
         */
        void enqueue(CudaStream stream, boolean captured);

        /** The operation is enqueued, and not captured; an event marks its end. */
        default void enqueued(StreamWork work) {}

        /**
         * Releases the memory that the operation uses: the GPU no longer does, or the graph that
         * captured the operation keeps it.
         */
        default void release() {}
    }

    @Override
    public Optional<CollectiveException> problem(Operation first) {
        CollectiveMismatchException difference = hosts.difference();
        if (difference != null) {
            return Optional.of(difference);
        }
        CollectiveException gaveUp = first == null ? null : waits.failure(first);
        if (gaveUp != null) {
            return Optional.of(gaveUp);
        }
        if (System.nanoTime() - peersPolled < PEER_POLL_NANOS) {
            return Optional.empty();
        }
        peersPolled = System.nanoTime();
        String failed =
                hosts.brokenRank(); // before departed ranks: it may have left for that reason
        if (failed != null) {
            return Optional.of(GroupErrors.brokenBy(failed));
        }
        String departed = first == null ? null : hosts.departedBefore(first);
        return departed == null
                ? Optional.empty()
                : Optional.of(GroupErrors.gone(first, context.rank(), departed));
    }

    EventPool events() {
        return events;
    }

    boolean isBlockingWait() {
        return group.resources().blocking();
    }

    CurrentStreams currentStreams() {
        return currentStreams;
    }

    /**
     * Runs an operation, which the body enqueues, on the caller's current stream, or captures it if
     * the stream is being captured. The GPU's context must be current. Releases the body, also if
     * this throws.
     */
    Work run(Operation operation, CudaStream current, Body body, List<NDArray> result) {
        if (current.isCapturing()) {
            return capture(operation, current, body, result);
        }
        StreamWork work = new StreamWork(this, current, operation, body, result);
        CollectiveException refused;
        try {
            refused = announce(operation, false);
        } catch (RuntimeException | Error e) {
            body.release();
            throw e;
        }
        if (refused == null) {
            enqueue(work, current, body);
        } else {
            work.fail(refused);
        }
        return work;
    }

    @Override
    public boolean comparesSignatures() {
        return true;
    }

    /**
     * Publishes the call; with verification, agrees on it with the other ranks first. Refuses it if
     * a kernel of this rank has given up a wait: the caller may have read that kernel's output.
     */
    @Override
    public CollectiveException announce(Operation operation, boolean captured) {
        if (broken == null) {
            waits.error().map(CollectiveException::new).ifPresent(group::abort);
        }
        if (broken != null) {
            throw GroupErrors.broken(operation, broken);
        }
        try {
            if (verify) {
                hosts.agree(operation, captured);
            }
            operation.announced();
            hosts.publish(operation, captured);
            called = operation.sequence();
            return null;
        } catch (RuntimeException | Error e) {
            CollectiveException reason = GroupErrors.failed(operation, e);
            boolean usable =
                    e instanceof CollectiveMismatchException calls && !calls.isGroupBroken();
            if (!usable) {
                group.abort(reason);
            }
            return reason;
        }
    }

    private void enqueue(StreamWork work, CudaStream current, Body body) {
        Operation operation = work.operation();
        order.lock();
        try {
            operation.started();
            follow(current);
            body.enqueue(current, false);
            work.recordEnd(current);
            body.enqueued(work);
            launched(work);
        } catch (RuntimeException | Error e) {
            // The other ranks run this operation, and would wait for this rank.
            CollectiveException reason = GroupErrors.failed(operation, e);
            group.breakWith(reason);
            work.fail(reason);
            return;
        } finally {
            order.unlock();
        }
        Watchdog watchdog = group.watchdog();
        watchdog.add(work);
        if (broken != null && watchdog.remove(work) && work.seal(broken)) {
            // The queue was broken before the work was added.
            work.complete(false);
        }
    }

    /**
     * Lets a stream wait for all earlier operations of the group. If nothing was launched on the
     * group's stream since the last operation here, that operation is enough to wait for.
     * Otherwise, the group's stream waits for that operation, and this stream for the group's.
     * While NCCL still connects ranks for earlier operations, the host waits, too: see {@link
     * Rendezvous}.
     */
    private void follow(CudaStream current) {
        long launched = group.collectives().awaitLaunched();
        if (launched == launches) {
            if (last != null) {
                last.order(current);
            }
        } else {
            join(); // No-op unless the launches were issued before the last operation here.
            before.record(group.collectives().stream());
            current.waitEvent(before);
            launches = launched;
        }
    }

    private void launched(GpuTurns.Launched work) {
        last = work;
        joined = false;
        if (Batch.isAnyOpen()) {
            join(); // Operations of the batch were issued before, but are launched after.
        }
    }

    @Override
    public void launchAfterAll(Runnable launch) {
        order.lock();
        try {
            join();
            launch.run();
        } finally {
            order.unlock();
        }
    }

    /**
     * Orders the launches of CUDA graphs that hold operations of the group with its other
     * operations: kernels count epochs when they run, so two that run at the same time would take
     * the same epoch. While a stream is being captured, a launch becomes a part of that graph,
     * which is ordered instead.
     */
    private final class Replays implements CudaGraph.LaunchHook, GpuTurns.Launched {

        private final long place = PLACES.getAndIncrement();
        private CudaEvent end; // after the last launch; created on first use
        private long stream; // handle of the stream of the last launch

        @Override
        public long place() {
            return place;
        }

        @Override
        public void before(CudaStream current) {
            order.lock();
            try {
                if (!current.isCapturing()) {
                    follow(current);
                }
            } catch (RuntimeException | Error e) {
                order.unlock();
                throw e;
            }
        }

        @Override
        public void after(CudaStream current) {
            try {
                if (!current.isCapturing()) {
                    end = end == null ? CudaEvent.create(device) : end;
                    end.record(current);
                    stream = current.handle();
                    launched(this);
                }
            } finally {
                order.unlock();
            }
        }

        @Override
        public void order(CudaStream other) {
            if (other.handle() != stream) {
                other.waitEvent(end);
            }
        }

        /** No-op: other graphs of the group use this hook, too. */
        @Override
        public void close() {}

        void free() {
            if (end != null) {
                end.close();
            }
        }
    }

    private void join() {
        if (last != null && !joined) {
            last.order(group.collectives().stream());
            joined = true;
        }
    }

    private Work capture(Operation operation, CudaStream current, Body body, List<NDArray> result) {
        try {
            CollectiveException refused = announce(operation, true);
            if (refused != null) {
                throw refused;
            }
            CudaGraph.hook(this, () -> replays);
            operation.started();
            operation.keepGroup();
            body.enqueue(current, true);
            current.keepAlive(result.toArray(new NDArray[0]));
            operation.ended(null);
        } finally {
            body.release();
        }
        if (!replayed) {
            replayed = true;
            group.watchdog().watchAlways(this);
        }
        return new CapturedWork(operation.sequence(), result);
    }

    /**
     * An operation also fails if another rank fails before this host has seen the operation's end,
     * even if its own waits succeeded. A rank after a timed-out wait notifies the others and
     * continues, and may overwrite data that they still read.
     */
    @Override
    public CollectiveException failureOf(Operation operation) {
        CollectiveException failure = waits.failure(operation);
        if (failure != null) {
            return failure;
        }
        String failed = hosts.failedRank();
        return failed == null ? null : GroupErrors.brokenBy(failed);
    }

    /** Returns an error of the kernels, including those that graphs replay. */
    @Override
    public Optional<String> error() {
        return waits.error();
    }

    @Override
    public List<Integer> missing() {
        return hosts.slowestRanks();
    }

    @Override
    public boolean breakWith(CollectiveException reason) {
        synchronized (this) {
            if (broken != null) {
                return false;
            }
            broken = reason;
        }
        place.leave();
        hosts.fail(reason.getMessage());
        hosts.end();
        return true;
    }

    /** Ends all waits for other ranks in kernels, including kernels that graphs replay. */
    @Override
    public void abort() {
        waits.stop();
        device.synchronize();
    }

    /** Makes waits of this host for other ranks fail. Thread-safe. */
    void end() {
        place.turn().stop();
        hosts.end();
    }

    private static void exit() {
        synchronized (OPEN) {
            OPEN.forEach(P2pQueue::release);
        }
    }

    /**
     * Ends all waits of kernels before the process exits, because the driver waits for running
     * kernels. Before that, notifies the other ranks that this rank has failed: later work on the
     * streams may overwrite data that they read.
     */
    private void release() {
        try {
            if (!group.watchdog().isDone()) {
                hosts.fail("its process exits within operations");
            }
        } finally {
            waits.stop();
        }
    }

    /** Announces to the other ranks that this rank makes no more calls. */
    void endCalls() {
        hosts.endCalls(called);
    }

    /** Frees all resources; nothing may be enqueued any more. */
    void close() {
        synchronized (OPEN) {
            OPEN.remove(this);
        }
        device.synchronize();
        events.close();
        currentStreams.close();
        before.close();
        replays.free();
    }
}
