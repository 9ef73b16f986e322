/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.gpu.Watchdog;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.nccl.NcclCommunicator;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Collectives and messages between GPUs by NCCL, for one rank.
 *
 * <p>Operations run on a stream of the group, after what the caller has enqueued on its current
 * stream; issuing one does not wait for other ranks. Messages run on streams and communicators of
 * their own for each peer and direction, so that they wait neither for collectives nor for each
 * other; those of one direction are matched in their order. <b>NCCL has no tags:</b> they are
 * compared only if {@linkplain NcclOptions.Builder#optVerify verifying}, and a receive from any
 * source is not supported.
 *
 * <p>NCCL itself does not notice calls that do not fit together: they hang until the timeout, or
 * corrupt results. Verifying finds them.
 *
 * <p>A {@link Companion} runs further operations of the group: by kernels, which take their turn on
 * the stream of the group ({@link #run}), or on others, which it orders with that one.
 *
 * <p>When an operation is late, NCCL reports an error or a peer's process has ended, the
 * communicator is aborted, what is under way fails and so do later calls. A late message breaks
 * only the messages of its direction and peer. A rank that destroys the group is not noticed before
 * the timeout.
 */
public final class NcclBackend extends Backend {

    static final String NAME = "nccl";

    private static final Set<ScalarType> ALL = EnumSet.allOf(ScalarType.class);
    private static final Set<ScalarType> REDUCIBLE =
            EnumSet.of(
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.INT64,
                    ScalarType.INT32,
                    ScalarType.INT8,
                    ScalarType.UINT8,
                    ScalarType.BOOL);
    private static final Set<ReduceOp.Kind> REDUCTIONS =
            EnumSet.of(
                    ReduceOp.Kind.SUM,
                    ReduceOp.Kind.AVG,
                    ReduceOp.Kind.PRODUCT,
                    ReduceOp.Kind.MIN,
                    ReduceOp.Kind.MAX,
                    ReduceOp.Kind.PREMUL_SUM);

    static final Support SUPPORT =
            Support.builder()
                    .addPlain(OpType.BARRIER)
                    .addMoves(
                            ALL,
                            OpType.BROADCAST,
                            OpType.ALL_GATHER,
                            OpType.ALL_GATHER_INTO_TENSOR,
                            OpType.GATHER,
                            OpType.SCATTER,
                            OpType.ALL_TO_ALL,
                            OpType.ALL_TO_ALL_SINGLE,
                            OpType.SEND,
                            OpType.RECV)
                    .addReductions(
                            REDUCIBLE,
                            REDUCTIONS,
                            OpType.ALL_REDUCE,
                            OpType.REDUCE,
                            OpType.REDUCE_SCATTER,
                            OpType.REDUCE_SCATTER_TENSOR)
                    .build();

    private static final Duration CONNECT_PATIENCE = Duration.ofMinutes(1);
    private static final Duration DISPOSAL_PATIENCE = Duration.ofSeconds(5);

    private final GroupContext context;
    private final NcclOptions options;
    private final GpuResources resources;
    private final Watchdog watchdog;
    private final NcclQueue queue; // of collectives
    private final MessageQueues messageQueues;
    private final Set<NcclBackend> family; // whose communicators share what an abort ends
    private volatile Peers peers = Peers.none();
    private volatile Companion companion = new Nobody();
    private NDArray barrierWord; // guarded by this
    private boolean stopped; // guarded by this
    private boolean closed; // guarded by this

    private NcclBackend(
            GroupContext context, NcclOptions options, Device device, Set<NcclBackend> family) {
        this.context = context;
        this.options = options;
        this.family = family;
        String name = NAME + "-" + context.name() + "-rank-" + context.rank();
        resources = new GpuResources(device, options, name);
        watchdog = new Watchdog(name, new Members());
        NcclQueue.Listener listener = new Failures();
        queue =
                new NcclQueue(
                        "group '" + context.name() + "'",
                        resources,
                        this::connect,
                        options.isVerify() ? new Comparison(context) : null,
                        listener);
        messageQueues = new MessageQueues(context, resources, options, listener, this::met);
    }

    /** Compares what nobody else does. */
    private final class Comparison implements NcclQueue.Verifier {

        private final Verification verification;

        Comparison(GroupContext context) {
            verification = new Verification(context);
        }

        @Override
        public boolean concerns(NcclWork work) {
            return !companion.comparesSignatures() || work.call().detail().length > 0;
        }

        @Override
        public void verify(NcclWork work) {
            verification.collective(work);
        }
    }

    /**
     * What runs operations of the same group in another way, and knows what all ranks call. It
     * breaks with the group, and the group with it.
     */
    public interface Companion extends Watchdog.Queue {

        /**
         * Tells whether it has compared the signatures of collectives before NCCL gets them.
         *
         * @return whether it has
         */
        default boolean comparesSignatures() {
            return false;
        }

        /**
         * Tells what is known there to keep operations from ever ending well.
         *
         * @param first the collective that was called first of those under way; null if there is
         *     none
         * @return the problem, or empty
         */
        Optional<CollectiveException> problem(Operation first);

        /**
         * Tells the other ranks of a collective that is about to be issued.
         *
         * @param operation the operation
         * @param captured whether the caller's stream is recorded into a graph
         * @return why it must not be issued, or null
         * @throws CollectiveException if the group is broken
         */
        CollectiveException announce(Operation operation, boolean captured);

        /** Lets the group's stream wait for what was enqueued elsewhere; before it is used. */
        default void join() {}

        /**
         * Tells why an operation failed whose kernel has ended.
         *
         * @param operation the operation
         * @return the reason; null if it did not fail
         */
        CollectiveException failureOf(Operation operation);
    }

    /** The companion of a group that NCCL alone runs. */
    private static final class Nobody implements Companion {

        @Override
        public Optional<CollectiveException> problem(Operation first) {
            return Optional.empty();
        }

        @Override
        public CollectiveException announce(Operation operation, boolean captured) {
            return null;
        }

        @Override
        public CollectiveException failureOf(Operation operation) {
            return null;
        }

        @Override
        public Optional<String> error() {
            return Optional.empty();
        }

        @Override
        public boolean breakWith(CollectiveException reason) {
            return false;
        }

        @Override
        public void abort() {}
    }

    /** What is done on the group's stream without NCCL. */
    @FunctionalInterface
    public interface Kernel {

        /**
         * Launches it; on any thread, with no other operation of the group being launched.
         *
         * @param address the tensor's elements, which are contiguous
         * @param stream where
         */
        void launch(long address, CudaStream stream);

        /**
         * Gives up what an operation held that has failed and ended on this GPU.
         *
         * @param release gives it up; to be run later where another GPU may still write into it
         */
        default void releaseFailed(Runnable release) {
            release.run();
        }
    }

    /**
     * Names what runs operations of the same group in another way.
     *
     * @param other what does, before it runs any
     */
    public void accompany(Companion other) {
        companion = other;
    }

    private synchronized void met(int rank, byte[] process) {
        peers = peers.with(rank, process);
    }

    /**
     * Creates the backend.
     *
     * @param context the group and the rank
     * @param options the options
     * @return the backend
     * @throws CollectiveException if NCCL cannot be used here, with the cause
     */
    public static NcclBackend create(GroupContext context, NcclOptions options) {
        requireNccl();
        // What still frees a communicator may wait for all that the GPU runs, and have others wait
        // meanwhile that would end that.
        Disposal.await(DISPOSAL_PATIENCE);
        Optional<Device> given = DeviceChoice.given(context, options);
        Device device = given.orElseGet(() -> DeviceChoice.choose(context, System.getenv()));
        Set<NcclBackend> family = ConcurrentHashMap.newKeySet();
        NcclBackend backend = new NcclBackend(context, options, device, family);
        family.add(backend);
        return given.isPresent() ? backend.connected() : backend;
    }

    private static void requireNccl() {
        for (NativeLibrary library :
                List.of(NativeLibrary.CUDA, NativeLibrary.CUDA_PRESETS, NativeLibrary.NCCL)) {
            Throwable cause = library.unavailabilityCause();
            if (cause != null) {
                throw new CollectiveException(
                        "backend '" + NAME + "' cannot be used here: " + cause.getMessage(), cause);
            }
        }
    }

    private NcclBackend connected() {
        try {
            // The ranks have the timeout to arrive, and then some time for NCCL.
            BoundedCall.run(
                    "creating the communicator of group '" + context.name() + "'",
                    options.timeout().plus(CONNECT_PATIENCE),
                    () -> peers.dead(),
                    () -> {
                        queue.connect();
                        return true;
                    });
            return this;
        } catch (RuntimeException e) {
            close();
            throw e;
        }
    }

    /** Creates the group's communicator, with all ranks. */
    private NcclCommunicator connect() {
        boolean first = context.rank() == 0;
        Peers all = Peers.of(context.exchange("nccl-process", Peers.own()));
        synchronized (this) {
            peers = all;
        }
        byte[] id = first ? NcclCommunicator.uniqueId() : new byte[0];
        List<byte[]> ids = context.exchange("nccl", id);
        return NcclCommunicator.create(
                resources.cuda(),
                ids.get(0),
                context.rank(),
                context.worldSize(),
                options.config());
    }

    @Override
    public Optional<Backend> split(GroupContext child, int color, List<Integer> members) {
        int key = members.indexOf(context.rank());
        int own = child == null ? -1 : color;
        NcclCommunicator part =
                queue.split(own, key, options.config(), options.timeout(), () -> peers.dead());
        if (child == null) {
            return Optional.empty();
        }
        Set<NcclBackend> relatives =
                Boolean.TRUE.equals(options.config().splitShare())
                        ? family
                        : ConcurrentHashMap.newKeySet();
        NcclBackend backend = new NcclBackend(child, options, resources.device(), relatives);
        relatives.add(backend);
        backend.queue.adopt(part);
        backend.peers = peers.subset(members);
        return Optional.of(backend);
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public Support support() {
        return SUPPORT;
    }

    @Override
    public Device device() {
        return resources.device();
    }

    @Override
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        return issue(operation, Calls.allReduce(input(tensor), op), List.of(tensor));
    }

    @Override
    public Work allReduceInOrder(Operation operation, NDArray tensor, ReduceOp op) {
        Batch.requireNone(operation);
        return allReduce(operation, tensor, op);
    }

    @Override
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        boolean isRoot = context.rank() == root;
        return issue(operation, Calls.reduce(input(tensor), root, isRoot, op), List.of(tensor));
    }

    @Override
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        boolean isRoot = context.rank() == root;
        DeviceTensor io = isRoot ? input(tensor) : output(tensor);
        return issue(operation, Calls.broadcast(io, root, isRoot), List.of(tensor));
    }

    @Override
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        return issue(operation, Calls.allGather(outputs(outputs), input(input)), outputs);
    }

    @Override
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        return issue(
                operation,
                Calls.reduceScatter(output(output), inputs(inputs), op),
                List.of(output));
    }

    @Override
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        return issue(operation, Calls.gather(outputs(outputs), input(input), root), outputs);
    }

    @Override
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        return issue(
                operation, Calls.scatter(output(output), inputs(inputs), root), List.of(output));
    }

    @Override
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        return issue(operation, Calls.allToAll(outputs(outputs), inputs(inputs)), outputs);
    }

    @Override
    public Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        return issue(
                operation,
                Calls.allToAllSingle(output(output), input(input), outputCounts, inputCounts),
                List.of(output));
    }

    @Override
    public Work send(Operation operation, NDArray tensor, int destination, int tag) {
        Call call = Calls.send(input(tensor), tag);
        return issue(messageQueues.to(destination), operation, call, List.of(tensor), destination);
    }

    @Override
    public Work recv(Operation operation, NDArray tensor, int source, int tag) {
        Call call = Calls.recv(output(tensor), tag);
        return issue(messageQueues.from(source), operation, call, List.of(tensor), source);
    }

    /**
     * Runs a kernel as an operation, in its turn among those that NCCL runs.
     *
     * @param operation the operation, of which the tensor is known
     * @param tensor what the kernel changes
     * @param inPlace whether it can do so in the tensor's memory, and need not be given a copy
     * @param current the caller's current stream, which is not being captured
     * @param kernel the kernel
     * @return the work
     */
    public Work run(
            Operation operation,
            NDArray tensor,
            boolean inPlace,
            CudaStream current,
            Kernel kernel) {
        DeviceTensor io =
                inPlace
                        ? DeviceTensor.inPlace(tensor, operation.tensor())
                        : DeviceTensor.copied(resources.manager(), tensor);
        return issue(queue, current, operation, Calls.kernel(io, kernel), List.of(tensor), -1);
    }

    /**
     * Waits until all collectives that were issued are on the group's stream; the helper that
     * launches them may itself wait for other ranks.
     *
     * @return a number that changes with whatever is launched there
     */
    public long awaitLaunched() {
        return queue.awaitLaunched();
    }

    /**
     * Tells whether all collectives that were issued are on the group's stream.
     *
     * @return whether {@link #awaitLaunched} would not wait
     */
    public boolean isLaunched() {
        return queue.isLaunched();
    }

    /**
     * Returns the stream of the group's collectives.
     *
     * @return the stream, not to be closed
     */
    public CudaStream stream() {
        return queue.stream();
    }

    /**
     * Returns who watches over the group's works.
     *
     * @return the watchdog, not to be closed
     */
    public Watchdog watchdog() {
        return watchdog;
    }

    @Override
    public void startBatch() {
        Batch.beginTogether();
    }

    @Override
    public void endBatch() {
        Batch.endTogether();
    }

    @Override
    public boolean batchesCollectives() {
        return true;
    }

    @Override
    public Work barrier(Operation operation) {
        return issue(operation, Calls.allReduce(input(barrierWord()), ReduceOp.MAX), List.of());
    }

    /** What barriers reduce; nobody reads it. */
    private synchronized NDArray barrierWord() {
        if (barrierWord == null) {
            barrierWord = Torch.empty(resources.manager(), new Shape(1), ScalarType.INT32);
        }
        return barrierWord;
    }

    private DeviceTensor input(NDArray tensor) {
        return DeviceTensor.input(resources.manager(), tensor);
    }

    private DeviceTensor output(NDArray tensor) {
        return DeviceTensor.output(resources.manager(), tensor);
    }

    private List<DeviceTensor> inputs(List<NDArray> tensors) {
        return tensors.stream().map(this::input).toList();
    }

    private List<DeviceTensor> outputs(List<NDArray> tensors) {
        return tensors.stream().map(this::output).toList();
    }

    private Work issue(Operation operation, Call call, List<NDArray> result) {
        return issue(queue, operation, call, result, -1);
    }

    private Work issue(
            NcclQueue where, Operation operation, Call call, List<NDArray> result, int peer) {
        return resources
                .cuda()
                .within(
                        () -> {
                            CudaStream current = resources.current().get();
                            if (current.isCapturing()) {
                                throw captured(operation, call, peer);
                            }
                            return issue(where, current, operation, call, result, peer);
                        });
    }

    /** Gives a call up that is recorded, and tells the other ranks of it. */
    private RuntimeException captured(Operation operation, Call call, int peer) {
        call.release();
        CollectiveException refused = peer < 0 ? companion.announce(operation, true) : null;
        return refused != null
                ? refused
                : new IllegalStateException(
                        operation
                                + " cannot go into a CUDA graph, as NCCL runs it; sums"
                                + " and fused operators of backend 'cuda_p2p' can");
    }

    private Work issue(
            NcclQueue where,
            CudaStream current,
            Operation operation,
            Call call,
            List<NDArray> result,
            int peer) {
        NcclWork work = null;
        CollectiveException refused;
        try {
            // Made before the others are told: what it needs may not be there.
            work = new NcclWork(where, current, operation, call, result, peer);
            refused = peer < 0 ? companion.announce(operation, false) : null;
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
            queue.checkUsable(operation); // Messages fail with the group, to new peers as well.
            if (where == queue) {
                companion.join();
            }
            where.issue(work);
            return work;
        } catch (RuntimeException e) {
            if (watchdog.remove(work)) {
                work.discard();
            }
            throw GroupErrors.failed(operation, e);
        }
    }

    /**
     * Breaks the group: what is under way fails, and so do later calls.
     *
     * @param reason why
     */
    public void breakWith(CollectiveException reason) {
        watchdog.fail(queues(), reason);
    }

    private List<NcclQueue> ncclQueues() {
        List<NcclQueue> queues = new ArrayList<>(messageQueues.all());
        queues.add(queue);
        return queues;
    }

    private List<Watchdog.Queue> queues() {
        List<Watchdog.Queue> queues = new ArrayList<>(ncclQueues());
        queues.add(companion);
        return queues;
    }

    /** What the watchdog needs to know. */
    private final class Members implements Watchdog.Group {

        @Override
        public Collection<Watchdog.Queue> failingWith(Watchdog.Queue failing) {
            return failing == queue || failing == companion ? queues() : List.of(failing);
        }

        @Override
        public Collection<Watchdog.Queue> queues() {
            return NcclBackend.this.queues();
        }

        @Override
        public Optional<CollectiveException> problem(Collection<? extends Watchdog.Watched> first) {
            Optional<CollectiveException> beside = companion.problem(firstCollective(first));
            return beside.isPresent() ? beside : peers.dead().map(GroupErrors::brokenBy);
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

    /** What the queues tell. */
    private final class Failures implements NcclQueue.Listener {

        @Override
        public void failed(NcclQueue failed, CollectiveException reason) {
            watchdog.fail(failed == queue ? queues() : List.of(failed), reason);
        }

        /**
         * NCCL has one flag for aborting communicators that share resources: the works of all must
         * have failed before it is set, or they would look as if they had ended well.
         */
        @Override
        public void aborting(NcclQueue aborted, CollectiveException reason) {
            if (aborted != queue) {
                return;
            }
            for (NcclBackend relative : family) {
                if (relative != NcclBackend.this) {
                    relative.breakWith(
                            new CollectiveException(
                                    "group '"
                                            + context.name()
                                            + "', with which it shares resources of NCCL, failed: "
                                            + reason.getMessage(),
                                    reason));
                }
            }
        }

        @Override
        public void refused(NcclWork work, CollectiveException reason) {
            if (watchdog.remove(work) && work.seal(reason)) {
                work.complete(true);
            }
        }

        // The companion knows of collectives, messages are between two ranks.

        @Override
        public Optional<String> error(NcclQueue of) {
            return of == queue ? companion.error() : Optional.empty();
        }

        @Override
        public List<Integer> missing(NcclQueue from) {
            return from == queue ? companion.missing() : List.of();
        }

        @Override
        public CollectiveException failureOf(Operation operation) {
            return companion.failureOf(operation);
        }
    }

    @Override
    public void drain() {
        watchdog.drain();
    }

    /** Ends what is under way; to be called before {@link #close} by who has to do so earlier. */
    public void stop() {
        synchronized (this) {
            if (stopped) {
                return;
            }
            stopped = true;
        }
        if (!watchdog.isIdle()) {
            breakWith(GroupErrors.groupDestroyed(context.name()));
        }
        watchdog.close();
        family.remove(this);
    }

    @Override
    public void close() {
        stop();
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        List<NcclQueue> queues = ncclQueues();
        Disposal.run(
                "what NCCL holds for group '" + context.name() + "'",
                () -> {
                    queues.forEach(NcclQueue::close);
                    resources.close();
                });
    }
}
