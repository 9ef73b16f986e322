// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.gpu.Batch;
import org.djlx.collectives.internal.gpu.BoundedCall;
import org.djlx.collectives.internal.gpu.DeviceTensor;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.gpu.GpuCall;
import org.djlx.collectives.internal.gpu.GpuGroup;
import org.djlx.collectives.internal.gpu.GpuResources;
import org.djlx.collectives.internal.gpu.QueuedWork;
import org.djlx.collectives.internal.host.FailureNote;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.Peers;
import org.djlx.collectives.internal.host.RankProcess;
import org.djlx.collectives.internal.nccl.Messages.Channel;
import org.djlx.collectives.launch.LaunchEnvironment;
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
 * The {@code nccl} backend of one rank: collectives and messages (send and recv) between GPUs.
 *
 * <ul>
 *   <li>A collective runs on the group's stream, after the work that the caller has enqueued on its
 *       current stream. Issuing a collective does not wait for other ranks.
 *   <li>If all ranks name their GPUs, messages run on the group's communicator: {@link
 *       GroupMessages}. Otherwise, or with {@link NcclOptions#isPairCommunicators()}, each pair of
 *       ranks has its own communicators for messages: {@link PairMessages}. Messages to a peer
 *       match the peer's receives in the order of the calls.
 *   <li>NCCL has no tags and does not detect mismatched calls: see {@link
 *       org.djlx.collectives.ProcessGroup#send} and {@link DebugLevel#DETAIL}. A receive from any
 *       source is not supported.
 * </ul>
 *
 * <p>If an operation times out, NCCL reports an error, a peer's process ends or a host of the group
 * is silent for 8 s, the communicator is aborted. Running operations and later calls then fail; see
 * {@link GpuGroup}. A message that times out on a pair's communicator breaks only that
 * communicator. If a peer has destroyed the group, operations that need the peer fail only at the
 * timeout.
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
                    ScalarType.COMPLEX128,
                    ScalarType.COMPLEX64,
                    ScalarType.COMPLEX32,
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

    // The exchanges that connect the ranks.
    private static final String PROCESSES = "nccl-process";
    private static final String IDS = "nccl";

    private static final Duration CONNECT_PATIENCE = Duration.ofMinutes(1);
    private static final Duration DISPOSAL_PATIENCE = Duration.ofSeconds(5);

    private final GroupContext context;
    private final NcclOptions options;
    private final GpuResources resources;
    private final NcclConnection connection; // of collectives
    private final Calls calls; // of collectives
    private final GpuGroup group;
    private final Messages pairMessages; // of object lists and monitoredBarrier, too
    private volatile Messages messages; // of send and recv
    private final Set<NcclBackend> sharing; // of NCCL resources, this backend included
    private volatile Peers peers = Peers.none();
    private final FailureNote exchangeNote; // until the ranks have completed an exchange
    private Optional<FailureNote> note = Optional.empty(); // afterwards; guarded by this
    private volatile long inherited; // the parent's generation; 0 without one
    private boolean watchesHosts = true; // false if the parent group watches them
    private NDArray barrierWord; // guarded by this

    private NcclBackend(
            GroupContext context, NcclOptions options, Device device, Set<NcclBackend> sharing) {
        this.context = context;
        this.options = options;
        this.sharing = sharing;
        exchangeNote = FailureNote.ofExchanges(context, List.of(PROCESSES, IDS));
        String name = NAME + "-" + context.name() + "-rank-" + context.rank();
        resources =
                new GpuResources(
                        device, options.isHighPriorityStream(), options.isBlockingWait(), name);
        connection =
                new NcclConnection(
                        this::createCommunicator,
                        options.debug() == DebugLevel.DETAIL
                                ? new NcclConnection.Verifier(
                                        this::isToBeVerified,
                                        new Verification(context, "verify")::start)
                                : null,
                        this::breakSharing);
        calls = new Calls(connection, context.worldSize());
        group = new GpuGroup(context.name(), "NCCL", name, resources, connection, this::deadPeer);
        pairMessages = new PairMessages(context, group, options, this::met);
        messages = pairMessages;
    }

    /**
     * Returns whether this backend must verify a call: the extension does not compare all of it.
     */
    private boolean isToBeVerified(QueuedWork work) {
        return !group.comparesSignatures() || work.call().detail().length > 0;
    }

    /** Returns this rank's streams, watchdog and failure handling; the backend closes them. */
    public GpuGroup group() {
        return group;
    }

    /**
     * Describes a rank that has died or failed; empty if none is known. While ranks connect, their
     * exchange reads failures.
     */
    private Optional<String> deadPeer() {
        return generation() == 0 ? peers.dead() : lostPeer();
    }

    private Optional<String> lostPeer() {
        return peers.dead().or(() -> failures().failure());
    }

    /**
     * Returns the number of the first exchange that all ranks have completed, in this group or in
     * its parent; 0 if there is none.
     */
    private long generation() {
        return inherited != 0 ? inherited : context.generation();
    }

    /** Returns the note that the other ranks read. */
    private synchronized FailureNote failures() {
        long exchange = generation();
        if (exchange != 0 && note.isEmpty()) {
            String key = "failure-" + Long.toHexString(exchange);
            note = Optional.of(new FailureNote(context.store(), key, context.worldSize()));
        }
        return note.orElse(exchangeNote);
    }

    /** Announces to the other ranks that this rank has failed. */
    private void publish(CollectiveException reason) {
        failures().publish(context.rank(), reason);
    }

    private synchronized void met(int rank, RankProcess process) {
        peers = peers.with(rank, process);
    }

    /**
     * Creates the backend. The first operation connects the ranks, unless {@link #connectEarly}
     * does.
     *
     * @throws CollectiveException if NCCL cannot be used here, with the cause
     */
    public static NcclBackend create(GroupContext context, NcclOptions options) {
        requireLibraries(NAME);
        // A background thread may still be freeing a communicator and waiting for a running kernel.
        // Meanwhile it can block the calls that would let this kernel end.
        Disposal.await(DISPOSAL_PATIENCE);
        Device device =
                DeviceChoice.given(context, options)
                        .orElseGet(
                                () ->
                                        DeviceChoice.choose(
                                                context, LaunchEnvironment.current().variables()));
        Set<NcclBackend> sharing = ConcurrentHashMap.newKeySet();
        NcclBackend backend = new NcclBackend(context, options, device, sharing);
        sharing.add(backend);
        return backend;
    }

    /** Checks that this machine has the libraries of a backend that builds on NCCL. */
    public static void requireLibraries(String backend) {
        for (NativeLibrary library :
                List.of(NativeLibrary.CUDA, NativeLibrary.CUDA_PRESETS, NativeLibrary.NCCL)) {
            Throwable cause = library.unavailabilityCause();
            if (cause != null) {
                throw new CollectiveException(
                        "backend '" + backend + "' cannot be used here: " + cause.getMessage(),
                        cause);
            }
        }
    }

    /**
     * Connects the ranks if the options or the parent group name this rank's GPU; no-op for a group
     * of one rank. If connecting fails, closes the backend and throws.
     */
    public void connectEarly() {
        connectEarly(() -> {});
    }

    /**
     * Like {@link #connectEarly()}, then runs an action. The timeout covers both. If the action
     * fails, closes the backend and throws.
     *
     * @param connected may use the communicator; not run if the ranks are not connected early
     */
    public void connectEarly(Runnable connected) {
        if (!connectsEarly()) {
            return;
        }
        try {
            // The ranks must arrive within the timeout; NCCL has CONNECT_PATIENCE to connect them.
            BoundedCall.run(
                    "creating the communicator of group '" + context.name() + "'",
                    options.timeout().plus(CONNECT_PATIENCE),
                    this::deadPeer,
                    () -> {
                        group.collectives().connect();
                        connected.run();
                        return true;
                    });
        } catch (RuntimeException e) {
            publish(GroupErrors.failed(context.joining(), e));
            close();
            throw e;
        }
    }

    /** Returns whether {@link #connectEarly} connects this rank; other ranks may differ. */
    public boolean connectsEarly() {
        return DeviceChoice.given(context, options).isPresent() && context.worldSize() > 1;
    }

    /**
     * Enqueues an in-place all-reduce (SUM) of float32 numbers. The communicator must be connected,
     * and no other operation may run on it.
     */
    public void sum(long address, long count, CudaStream stream) {
        connection
                .communicator()
                .allReduce(
                        address,
                        address,
                        count,
                        ScalarType.FLOAT32,
                        NcclCommunicator.Op.SUM.ordinal(),
                        stream);
    }

    /** Returns whether the group has a communicator, for tests. */
    boolean isConnected() {
        return connection.communicator() != null;
    }

    /** Creates the communicator; the ranks agree whether messages run on it. */
    private NcclCommunicator createCommunicator() {
        boolean first = context.rank() == 0;
        List<byte[]> processes = context.exchange(PROCESSES, RankProcess.own().encoded());
        Peers all =
                Peers.of(
                        context.name(),
                        context.rank(),
                        context.store(),
                        processes.stream().map(RankProcess::decoded).toList());
        synchronized (this) {
            peers = all;
        }
        boolean shared = !options.devices().isEmpty() && !options.isPairCommunicators();
        byte[] id =
                Arrays.copyOf(
                        first ? NcclCommunicator.uniqueId() : new byte[0],
                        NcclCommunicator.UNIQUE_ID_BYTES + 1);
        id[NcclCommunicator.UNIQUE_ID_BYTES] = (byte) (shared ? 1 : 0);
        List<byte[]> ids = context.exchange(IDS, id);
        NcclCommunicator nccl =
                NcclCommunicator.create(
                        resources.cuda(),
                        Arrays.copyOf(ids.get(0), NcclCommunicator.UNIQUE_ID_BYTES),
                        context.rank(),
                        context.worldSize(),
                        options.config());
        if (ids.stream().allMatch(other -> other[NcclCommunicator.UNIQUE_ID_BYTES] == 1)) {
            messages = new GroupMessages(group.collectives(), calls);
        }
        return nccl;
    }

    @Override
    public Optional<Backend> split(GroupContext child, int color, List<Integer> members) {
        int key = members.indexOf(context.rank());
        int own = child == null ? -1 : color;
        NcclCommunicator part =
                group.collectives()
                        .callAlone(
                                "a split",
                                "splitting",
                                options.timeout(),
                                this::deadPeer,
                                () -> connection.communicator().split(own, key, options.config()));
        if (child == null) {
            return Optional.empty();
        }
        Set<NcclBackend> sharers =
                options.config().isShared() ? sharing : ConcurrentHashMap.newKeySet();
        NcclBackend backend = new NcclBackend(child, options, resources.device(), sharers);
        sharers.add(backend);
        backend.connection.adopt(part);
        if (messages != pairMessages) {
            backend.messages = new GroupMessages(backend.group.collectives(), backend.calls);
        }
        backend.peers = peers.subset(members);
        backend.inherited = generation();
        backend.watchesHosts = false;
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
    public void checkInOrder(Operation operation) {
        Batch.requireNone(operation);
    }

    @Override
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        return group.issue(operation, calls.allReduce(input(tensor), op), List.of(tensor));
    }

    @Override
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        boolean isRoot = context.rank() == root;
        return group.issue(
                operation, calls.reduce(input(tensor), root, isRoot, op), List.of(tensor));
    }

    @Override
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        boolean isRoot = context.rank() == root;
        DeviceTensor io = isRoot ? input(tensor) : output(tensor);
        return group.issue(operation, calls.broadcast(io, root, isRoot), List.of(tensor));
    }

    @Override
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        return group.issue(operation, calls.allGather(outputs(outputs), input(input)), outputs);
    }

    @Override
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        return group.issue(
                operation,
                calls.reduceScatter(output(output), inputs(inputs), op),
                List.of(output));
    }

    @Override
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        return group.issue(operation, calls.gather(outputs(outputs), input(input), root), outputs);
    }

    @Override
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        return group.issue(
                operation, calls.scatter(output(output), inputs(inputs), root), List.of(output));
    }

    @Override
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        return group.issue(operation, calls.allToAll(outputs(outputs), inputs(inputs)), outputs);
    }

    @Override
    public Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        return group.issue(
                operation,
                calls.allToAllSingle(output(output), input(input), outputCounts, inputCounts),
                List.of(output));
    }

    @Override
    public Work send(Operation operation, NDArray tensor, int destination, int tag) {
        Channel to = messages(tag).to(destination);
        GpuCall call = to.calls().send(input(tensor), to.peer(), tag);
        return group.issue(to.lane(), operation, call, List.of(tensor), destination);
    }

    @Override
    public Work recv(Operation operation, NDArray tensor, int source, int tag) {
        Channel from = messages(tag).from(source);
        GpuCall call = from.calls().recv(output(tensor), from.peer(), tag);
        return group.issue(from.lane(), operation, call, List.of(tensor), source);
    }

    /**
     * Returns the messages of a tag; negative tags are internal, and never wait for collectives.
     */
    private Messages messages(int tag) {
        return tag < 0 ? pairMessages : messages;
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
    public Work barrier(Operation operation) {
        return group.issue(
                operation, calls.allReduce(input(barrierWord()), ReduceOp.MAX), List.of());
    }

    /** Returns the tensor that barriers reduce; its value has no meaning. */
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

    /**
     * Breaks the groups whose communicators share NCCL resources with this group. An abort ends the
     * kernels of all these groups, and an aborted kernel looks like a completed kernel. So the
     * works of all groups must fail before the abort. If the reason is this rank's own, announces
     * it to the other ranks.
     */
    private void breakSharing(CollectiveException reason) {
        if (reason.getCause() != null && GroupErrors.isLocal(reason.getCause())) {
            publish(reason);
        }
        for (NcclBackend other : sharing) {
            if (other != this) {
                other.group.breakWith(
                        new CollectiveException(
                                "group '%s', which shares NCCL resources with it, failed: %s"
                                        .formatted(context.name(), reason.getMessage()),
                                reason));
            }
        }
    }

    @Override
    public void abort(CollectiveException reason) {
        if (group.failure().isEmpty()) {
            publish(reason);
        }
        group.abort(reason);
    }

    @Override
    public Optional<CollectiveException> failure() {
        if (group.failure().isEmpty()) {
            // The watchdog asks only while operations are under way.
            lostPeer().map(GroupErrors::brokenBy).ifPresent(group::breakWith);
        }
        return group.failure();
    }

    @Override
    public void drain() {
        group.watchdog().drain();
    }

    /** Fails all running works. Optional: {@link #close} calls this, too. */
    public void stop() {
        group.stop();
        sharing.remove(this);
    }

    @Override
    public void close() {
        stop();
        if (watchesHosts) {
            peers.close();
        }
        group.close();
    }
}
