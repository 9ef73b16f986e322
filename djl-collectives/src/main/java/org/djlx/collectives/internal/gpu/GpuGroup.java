// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.LongFunction;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.host.LongCalls;

/**
 * The streams, watchdog and failure handling of one rank's group on its GPU. A group has
 *
 * <ul>
 *   <li>one queue for its collectives and for kernels that run as collectives ({@link #run});
 *   <li>for its messages, a queue for each peer and direction ({@link #addMessages}), or a stream
 *       for each peer on the queue of collectives ({@link StreamQueue#addSide});
 *   <li>at most one {@link GroupExtension}, which runs collectives on the callers' streams ({@link
 *       #extend}).
 * </ul>
 *
 * <p>Invariants of calls:
 *
 * <ol>
 *   <li>A collective is announced to the other ranks only after its tensors and events have been
 *       prepared. A call that throws has not been announced.
 *   <li>A work is added to the watchdog before it is launched. A refused call fails alone and
 *       launches nothing.
 *   <li>The group's stream waits for the extension's operations before it gets the next collective.
 * </ol>
 *
 * <p>Invariants of completion:
 *
 * <ol>
 *   <li>The watchdog completes the works of a {@link Lane} in the order in which they were added.
 *   <li>A kernel's own failure is read after the event at its end has happened and before its work
 *       completes.
 *   <li>In each round, the watchdog first completes the works that have ended. Then it checks for
 *       works past their timeout, for errors of queues, for problems of peers that the extension
 *       reports, and for dead processes, in this order.
 * </ol>
 *
 * <p>Invariants of failure:
 *
 * <ol>
 *   <li>If the queue of collectives or the extension fails, all queues and the extension fail. If a
 *       queue of messages fails, it fails alone.
 *   <li>The first reason breaks a queue; later reasons are ignored. Later calls fail with the first
 *       reason.
 *   <li>When the extension is broken, it sends the reason to the other ranks before anything is
 *       aborted.
 *   <li>Works that have not ended fail before the abort, because aborted works look successful. For
 *       the same reason, {@link Connection#aborting} comes before {@link Connection#abort}.
 *   <li>All broken queues are aborted at the same time, because operations of one queue may wait
 *       for operations of another.
 *   <li>Failed works complete after the abort, in their order. They release their memory only if
 *       the GPU has stopped. The kernel decides when to release memory that peers may still write
 *       into.
 * </ol>
 *
 * <p>Invariants of the end:
 *
 * <ol>
 *   <li>{@link #stop} fails the works that have not ended, and ends the watchdog.
 *   <li>{@link #close} closes the queues on a separate thread: first the message queues, in the
 *       order of their keys, which is the same on all ranks; then the queue of collectives.
 * </ol>
 */
public final class GpuGroup {

    private static final long[] NO_DETAIL = {};

    private final String name;
    private final String backend;
    private final GpuResources resources;
    private final Supplier<Optional<String>> deadPeer;
    private final Watchdog watchdog;
    private final StreamQueue collectives;
    private final Map<String, StreamQueue> messages = new TreeMap<>(); // guarded by itself
    private volatile GroupExtension extension = GroupExtension.NONE;
    private boolean stopped; // guarded by this
    private boolean closed; // guarded by this

    /**
     * Creates the group's queue of collectives, and starts the watchdog.
     *
     * @param backend the name of the backend that connects the ranks, such as "NCCL"
     * @param resources the GPU; closed with the group
     * @param deadPeer returns the name of a peer whose process has ended; empty if there is none
     */
    public GpuGroup(
            String name,
            String backend,
            String thread,
            GpuResources resources,
            Connection connection,
            Supplier<Optional<String>> deadPeer) {
        this.name = name;
        this.backend = backend;
        this.resources = resources;
        this.deadPeer = deadPeer;
        watchdog = new Watchdog(thread, new Members());
        collectives = new StreamQueue("group '" + name + "'", this, connection);
    }

    /** Sets the extension, before it runs any operation. */
    public void extend(GroupExtension added) {
        extension = added;
    }

    /**
     * Adds a queue of messages between this rank and a peer.
     *
     * @param key orders the queues, in the same way on all ranks
     */
    public StreamQueue addMessages(String key, String queue, Connection connection) {
        StreamQueue added = new StreamQueue(queue, this, connection);
        synchronized (messages) {
            messages.put(key, added);
        }
        return added;
    }

    public GpuResources resources() {
        return resources;
    }

    public StreamQueue collectives() {
        return collectives;
    }

    public Watchdog watchdog() {
        return watchdog;
    }

    /**
     * Returns whether the extension {@linkplain GroupExtension#comparesSignatures compares} the
     * signatures of collectives.
     */
    public boolean comparesSignatures() {
        return extension.comparesSignatures();
    }

    /**
     * Runs a kernel as a collective on the group's stream.
     *
     * @param operation the operation; its tensor is set
     * @param inPlace whether the kernel may use the tensor's memory, and needs no copy
     * @param current the caller's current stream, which is not being captured
     * @param kernel creates the kernel launch, given the address of the tensor's contiguous
     *     elements
     */
    public Work run(
            Operation operation,
            NDArray tensor,
            boolean inPlace,
            CudaStream current,
            LongFunction<GpuCall.Body> kernel) {
        DeviceTensor io =
                inPlace
                        ? DeviceTensor.inPlace(tensor, operation.tensor())
                        : DeviceTensor.copied(resources.manager(), tensor);
        GpuCall.Body body = kernel.apply(io.address());
        GpuCall call = new GpuCall(body, List.of(), List.of(io), NO_DETAIL, false);
        return issue(collectives, current, operation, call, List.of(tensor), -1);
    }

    public Work issue(Operation operation, GpuCall call, List<NDArray> result) {
        return issue(collectives, operation, call, result, -1);
    }

    /**
     * Issues an operation, ordered after the work on the caller's current stream.
     *
     * @param peer the peer rank of a message; -1 for a collective
     */
    public Work issue(
            Lane lane, Operation operation, GpuCall call, List<NDArray> result, int peer) {
        try (CurrentStreams.Scope scope = resources.current().hold()) {
            CudaStream current = scope.stream();
            if (current.isCapturing()) {
                throw captured(operation, call, peer);
            }
            return issue(lane, current, operation, call, result, peer);
        }
    }

    /**
     * Releases a call that cannot be captured. Announces the call, because other ranks may make it.
     */
    private RuntimeException captured(Operation operation, GpuCall call, int peer) {
        call.release();
        CollectiveException refused = peer < 0 ? extension.announce(operation, true) : null;
        return refused != null
                ? refused
                : new IllegalStateException(
                        ("%s cannot go into a CUDA graph, because %s runs it; sums, all-gathers,"
                                        + " broadcasts, all-to-alls and fused operators of backend"
                                        + " 'cuda_p2p' can")
                                .formatted(operation, backend));
    }

    private Work issue(
            Lane lane,
            CudaStream current,
            Operation operation,
            GpuCall call,
            List<NDArray> result,
            int peer) {
        QueuedWork work = null;
        CollectiveException refused;
        try {
            // Before the announcement, because the allocation may fail.
            work = new QueuedWork(lane, current, operation, call, result, peer);
            refused = peer < 0 ? extension.announce(operation, false) : null;
        } catch (RuntimeException | Error e) {
            if (work == null) {
                call.release();
            } else {
                work.discard();
            }
            throw e;
        }
        if (refused != null) {
            work.fail(refused);
            return work;
        }
        watchdog.add(work);
        try {
            // Messages fail after the group has failed, also to new peers.
            collectives.checkUsable(operation);
            if (lane == collectives) {
                QueuedWork issued = work;
                extension.launchAfterAll(() -> collectives.issue(issued));
            } else {
                lane.launcher().issue(work);
            }
            return work;
        } catch (RuntimeException e) {
            if (watchdog.remove(work)) {
                work.discard();
            }
            throw GroupErrors.failed(operation, e);
        }
    }

    /** Breaks the group: running works fail, and so do later calls. */
    public void breakWith(CollectiveException reason) {
        watchdog.fail(queues(), reason);
    }

    /**
     * As {@link #breakWith}, on a thread of its own if the current stream is being captured: the
     * abort waits for the GPU, which would invalidate the capture of this thread. No-op after
     * {@link #stop}.
     */
    public synchronized void abort(CollectiveException reason) {
        if (stopped) {
            return;
        }
        if (resources.current().get().isCapturing()) {
            LongCalls.start("collectives-broken-" + name, () -> breakWith(reason));
        } else {
            breakWith(reason);
        }
    }

    /** Returns why the group is broken; empty if it is usable. */
    public Optional<CollectiveException> failure() {
        return Optional.ofNullable(collectives.failure()); // Breaks whenever the group does.
    }

    /** Breaks a queue; the queue of collectives breaks the whole group. */
    void fail(StreamQueue failed, CollectiveException reason) {
        watchdog.fail(failingWith(failed), reason);
    }

    /** Fails an operation that does not match the other ranks' operations; its queue continues. */
    void refuse(QueuedWork work, CollectiveException reason) {
        if (watchdog.remove(work)) {
            work.fail(reason);
        }
    }

    /**
     * Returns the error of a kernel on a queue; empty if there is none. Queues of messages run no
     * kernels.
     */
    Optional<String> kernelError(StreamQueue queue) {
        return queue == collectives ? extension.error() : Optional.empty();
    }

    /** Returns the ranks that have not called a queue's first operation, as far as known. */
    List<Integer> missing(StreamQueue queue) {
        return queue == collectives ? extension.missing() : List.of();
    }

    /** Returns why a kernel failed; null if it succeeded. Called after the kernel has ended. */
    CollectiveException failureOf(Operation operation) {
        return extension.failureOf(operation);
    }

    /** Returns the queues in the order in which all ranks close them. */
    private List<StreamQueue> streamQueues() {
        List<StreamQueue> queues;
        synchronized (messages) {
            queues = new ArrayList<>(messages.values());
        }
        queues.add(collectives);
        return queues;
    }

    private List<Watchdog.Queue> queues() {
        List<Watchdog.Queue> queues = new ArrayList<>(streamQueues());
        queues.addAll(collectives.sides());
        queues.add(extension);
        return queues;
    }

    private List<Watchdog.Queue> failingWith(Watchdog.Queue failing) {
        boolean alone = failing instanceof StreamQueue && failing != collectives;
        return alone ? List.of(failing) : queues();
    }

    private final class Members implements Watchdog.Group {

        @Override
        public Collection<Watchdog.Queue> failingWith(Watchdog.Queue failing) {
            return GpuGroup.this.failingWith(failing);
        }

        @Override
        public Collection<Watchdog.Queue> queues() {
            return GpuGroup.this.queues();
        }

        @Override
        public Optional<CollectiveException> problem(Collection<? extends Watchdog.Watched> first) {
            Optional<CollectiveException> known = extension.problem(firstCollective(first));
            return known.isPresent() ? known : deadPeer.get().map(GroupErrors::brokenBy);
        }
    }

    private static Operation firstCollective(Collection<? extends Watchdog.Watched> works) {
        Operation first = null;
        for (Watchdog.Watched work : works) {
            Operation operation = work.operation();
            if (!operation.type().isPointToPoint()
                    && (first == null || operation.sequence() < first.sequence())) {
                first = operation;
            }
        }
        return first;
    }

    /** Fails running works and ends the watchdog. {@link #close} also does this. */
    public void stop() {
        synchronized (this) {
            if (stopped) {
                return;
            }
            stopped = true;
        }
        if (!watchdog.isIdle()) {
            breakWith(GroupErrors.groupDestroyed(name));
        }
        watchdog.close();
    }

    /** Stops the group, and frees its queues and resources; see {@link Disposal}. */
    public void close() {
        stop();
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        List<StreamQueue> queues = streamQueues();
        Disposal.run(
                "the queues of group '" + name + "'",
                () -> {
                    queues.forEach(StreamQueue::close);
                    resources.close();
                });
    }
}
