// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.P2pOp;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.p2p.P2pBackend;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.collectives.trace.FlightRecorder;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/** The {@link ProcessGroup} of every backend: checks arguments and issues operations in order. */
public final class RankGroup implements ProcessGroup {

    private static final int HEAP_UNIT = 16; // bytes; ranks agree on a place in the P2P heap

    private final GroupState state;
    private final Lifeline lifeline; // null on a rank that is not a member
    private final Runnable keeper; // lifeline::keep
    private final Backend backend;
    private final OperationChecks checks;
    private final Duration timeout;
    private final boolean debug; // DebugLevel.DETAIL
    private final boolean copyEngines; // collectives of this view leave the SMs to computation

    /**
     * Creates this rank's handle on an initial group of global ranks. The handle closes the
     * backend, and runs {@code onDestroy} after the group has been destroyed; the creator creates
     * all ranks of a local group.
     */
    public RankGroup(
            GroupContext context,
            Backend backend,
            String job,
            List<Integer> ranks,
            Optional<CreatingThread> creator,
            Runnable onDestroy) {
        this(new GroupState(null, context, backend, job, ranks, creator, onDestroy), null);
    }

    private RankGroup(GroupState state, RankGroup parent) {
        this(
                state,
                new Lifeline(state, parent == null ? null : parent.lifeline),
                state.context().options().timeout(),
                false);
    }

    private RankGroup(GroupState state, Lifeline lifeline, Duration timeout, boolean copyEngines) {
        this.state = state;
        this.lifeline = lifeline;
        this.keeper = lifeline == null ? null : lifeline::keep;
        this.backend = state.backend();
        this.checks = new OperationChecks(backend, state.rank(), state.worldSize());
        this.timeout = timeout;
        this.copyEngines = copyEngines;
        this.debug = state.debug() == DebugLevel.DETAIL;
    }

    static RankGroup part(
            RankGroup parent, GroupContext context, Backend backend, List<Integer> ranks) {
        GroupState whole = parent.state;
        String job = whole.trace().job();
        try {
            GroupState state =
                    new GroupState(whole, context, backend, job, ranks, whole.creator(), () -> {});
            RankGroup group = new RankGroup(state, parent);
            whole.addSubGroup(state);
            return group;
        } catch (Throwable e) {
            backend.close(); // Out of memory: no handle exists that could close it.
            throw e;
        }
    }

    static RankGroup nonMember(String name, List<Integer> ranks, RankGroup parent) {
        return new RankGroup(
                new GroupState(name, ranks, parent.state, parent.toString()),
                null,
                parent.timeout,
                false);
    }

    @Override
    public int rank() {
        return state.rank();
    }

    @Override
    public int worldSize() {
        return state.worldSize();
    }

    @Override
    public List<Integer> ranks() {
        return state.ranks();
    }

    @Override
    public List<Integer> parentRanks() {
        return state.parentRanks();
    }

    @Override
    public String name() {
        return state.name();
    }

    @Override
    public Device device() {
        return backend.device();
    }

    @Override
    public String backendName() {
        state.checkMember(); // Only members know it: a sub-group can have a backend of its own.
        return backend.name();
    }

    @Override
    public FlightRecorder flightRecorder() {
        return state.trace().recorder();
    }

    @Override
    public Duration timeout() {
        return timeout;
    }

    @Override
    public RankGroup withTimeout(Duration timeout) {
        return new RankGroup(state, lifeline, BackendOptions.checked(timeout), copyEngines);
    }

    @Override
    public RankGroup withCopyEngines() {
        return new RankGroup(state, lifeline, timeout, true);
    }

    /** Returns the offset of an array in the P2P heap if copy engines can write there; else -1. */
    private long heapPlace(NDArray output) {
        if (!copyEngines || !isP2pAvailable()) {
            return -1;
        }
        long offset = p2pBuffers().orElseThrow().allocator().offsetOf(output).orElse(-1);
        return offset % HEAP_UNIT == 0 ? offset : -1;
    }

    @Override
    public Optional<P2pBuffers> p2pBuffers() {
        state.checkUsable();
        return backend instanceof P2pBackend p2p ? p2p.p2pBuffers() : Optional.empty();
    }

    @Override
    public <T extends AutoCloseable> T attachment(Class<T> type, Supplier<T> maker) {
        Required.argument("attachment: type", type);
        Required.argument("attachment: maker", maker);
        return type.cast(state.attachment(type, maker));
    }

    @Override
    public Work allReduce(NDArray tensor, ReduceOp op, boolean asyncOp) {
        TensorInfo info = reduced(tensor, op);
        return issue(
                asyncOp,
                OpType.ALL_REDUCE,
                OperationChecks.agreed(info, op, 0),
                info,
                operation -> backend.allReduce(operation, tensor, op));
    }

    /** Issues a collective; lets the current stream wait for it unless the caller does. */
    private Work issue(
            boolean asyncOp,
            OpType type,
            Agreed agreed,
            TensorInfo tensor,
            Function<Operation, Work> call) {
        if (asyncOp) {
            return issue(type, agreed, tensor, 0, call);
        }
        Work work =
                issue(
                        type,
                        agreed,
                        tensor,
                        0,
                        operation -> {
                            backend.checkInOrder(operation);
                            operation.setInOrder();
                            return call.apply(operation);
                        });
        if (device().isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
        return work;
    }

    private TensorInfo reduced(NDArray tensor, ReduceOp op) {
        state.checkUsable();
        TensorInfo info = checks.reduced(OpType.ALL_REDUCE, "tensor", tensor, op);
        checks.written(OpType.ALL_REDUCE, "tensor", info);
        sent(OpType.ALL_REDUCE, tensor, info);
        return info;
    }

    /** Checks the contents of an input, after its type and shape, if the level asks for it. */
    private void sent(OpType type, NDArray input, TensorInfo info) {
        if (debug) {
            InputCheck.check(state, type, input, info);
        }
    }

    private void sent(OpType type, List<NDArray> inputs) {
        if (debug) {
            inputs.forEach(input -> InputCheck.check(state, type, input, Torch.info(input)));
        }
    }

    @Override
    public Work reduce(NDArray tensor, int root, ReduceOp op) {
        state.checkUsable();
        TensorInfo info = checks.reduced(OpType.REDUCE, "tensor", tensor, op);
        checks.root(OpType.REDUCE, root);
        sent(OpType.REDUCE, tensor, info);
        if (rank() == root) {
            checks.written(OpType.REDUCE, "tensor", info);
        }
        return issue(
                OpType.REDUCE,
                info,
                op,
                root,
                operation -> backend.reduce(operation, tensor, root, op));
    }

    @Override
    public Work broadcast(NDArray tensor, int root, boolean asyncOp) {
        state.checkUsable();
        TensorInfo info = checks.moved(OpType.BROADCAST, "tensor", tensor);
        checks.root(OpType.BROADCAST, root);
        if (rank() != root) {
            checks.written(OpType.BROADCAST, "tensor", info);
        } else {
            sent(OpType.BROADCAST, tensor, info);
        }
        return issue(
                asyncOp,
                OpType.BROADCAST,
                OperationChecks.agreed(info, null, root),
                info,
                operation -> backend.broadcast(operation, tensor, root));
    }

    @Override
    public Work allGather(List<NDArray> outputs, NDArray input) {
        OpType type = OpType.ALL_GATHER;
        state.checkUsable();
        TensorInfo in = checks.moved(type, "input", input);
        List<TensorInfo> out = checks.perRank(type, "outputs", outputs, in, null);
        List<NDArray> tensors = List.copyOf(outputs);
        for (int peer = 0; peer < worldSize(); peer++) {
            checks.written(type, "outputs", out.get(peer));
            checks.overlap(type, out.get(peer), in, peer == rank() ? 0 : -1);
        }
        sent(type, input, in);
        if (OperationChecks.differInShape(out)) {
            return Coalescing.allGatherUneven(this, tensors, input, out);
        }
        return issue(type, in, null, 0, operation -> backend.allGather(operation, tensors, input));
    }

    @Override
    public Work allGatherIntoTensor(NDArray output, NDArray input, boolean asyncOp) {
        return allGatherIntoTensor(OpType.ALL_GATHER_INTO_TENSOR, 0, output, input, asyncOp);
    }

    /** A tensor with a part for each rank, and this rank's part, which lies elsewhere or in it. */
    private record Parts(TensorInfo whole, TensorInfo part) {}

    @Override
    public TensorInfo checkAllGather(NDArray output, NDArray input) {
        return checkedGather(output, input).part;
    }

    private Parts checkedGather(NDArray output, NDArray input) {
        OpType type = OpType.ALL_GATHER_INTO_TENSOR;
        state.checkUsable();
        TensorInfo[] infos = checks.both(type, "input", input, "output", output, null);
        TensorInfo in = infos[0];
        TensorInfo out = infos[1];
        checks.whole(type, "output", out, "input", in);
        checks.written(type, "output", out);
        checks.overlap(type, out, in, rank() * in.count());
        sent(type, input, in);
        return new Parts(out, in);
    }

    /** Throws if the group has been destroyed, or this rank is not a member. */
    public void checkUsable() {
        state.checkUsable();
    }

    public void checkRoot(OpType type, int root) {
        state.checkUsable();
        checks.root(type, root);
    }

    public void checkPeer(OpType type, String role, int peer) {
        state.checkUsable();
        checks.peer(type, role, peer);
    }

    /**
     * All-gathers for an operation with its own name and a number that all ranks must pass alike.
     */
    public Work allGatherIntoTensor(OpType type, int index, NDArray output, NDArray input) {
        return allGatherIntoTensor(type, index, output, input, true);
    }

    private Work allGatherIntoTensor(
            OpType type, int index, NDArray output, NDArray input, boolean asyncOp) {
        Parts parts = checkedGather(output, input);
        long place = heapPlace(output);
        int agreed = place < 0 ? index : (int) (place / HEAP_UNIT) + 1;
        return issue(
                asyncOp,
                type,
                OperationChecks.agreed(parts.part, null, agreed),
                parts.part,
                operation -> {
                    operation.setPlace(place);
                    operation.setWhole(parts.whole);
                    return backend.allGather(operation, List.of(output), input);
                });
    }

    @Override
    public Work gather(List<NDArray> outputs, NDArray input, int root) {
        OpType type = OpType.GATHER;
        state.checkUsable();
        TensorInfo in = checks.moved(type, "input", input);
        checks.root(type, root);
        List<TensorInfo> out = checks.onRoot(type, "outputs", outputs, in, root);
        List<NDArray> tensors = outputs == null ? List.of() : List.copyOf(outputs);
        for (int peer = 0; peer < out.size(); peer++) {
            checks.written(type, "outputs", out.get(peer));
            checks.overlap(type, out.get(peer), in, peer == root ? 0 : -1);
        }
        sent(type, input, in);
        return issue(
                type, in, null, root, operation -> backend.gather(operation, tensors, input, root));
    }

    @Override
    public Work scatter(NDArray output, List<NDArray> inputs, int root) {
        OpType type = OpType.SCATTER;
        state.checkUsable();
        TensorInfo out = checks.moved(type, "output", output);
        checks.root(type, root);
        List<TensorInfo> in = checks.onRoot(type, "inputs", inputs, out, root);
        checks.written(type, "output", out);
        List<NDArray> tensors = inputs == null ? List.of() : List.copyOf(inputs);
        for (int peer = 0; peer < in.size(); peer++) {
            checks.overlap(type, in.get(peer), out, peer == root ? 0 : -1);
        }
        sent(type, tensors);
        return issue(
                type,
                out,
                null,
                root,
                operation -> backend.scatter(operation, output, tensors, root));
    }

    @Override
    public Work reduceScatter(NDArray output, List<NDArray> inputs, ReduceOp op) {
        OpType type = OpType.REDUCE_SCATTER;
        state.checkUsable();
        TensorInfo out = checks.reduced(type, "output", output, op);
        List<TensorInfo> in = checks.perRank(type, "inputs", inputs, out, op);
        checks.written(type, "output", out);
        List<NDArray> tensors = List.copyOf(inputs);
        for (int peer = 0; peer < worldSize(); peer++) {
            checks.overlap(type, in.get(peer), out, peer == rank() ? 0 : -1);
        }
        sent(type, tensors);
        if (OperationChecks.differInShape(in)) {
            in.set(rank(), out);
            return Coalescing.reduceScatterUneven(this, output, tensors, in, op);
        }
        return issue(
                type,
                out,
                op,
                0,
                operation -> backend.reduceScatter(operation, output, tensors, op));
    }

    @Override
    public Work reduceScatterTensor(NDArray output, NDArray input, ReduceOp op, boolean asyncOp) {
        Parts parts = checkedScatter(output, input, op);
        return issue(
                asyncOp,
                OpType.REDUCE_SCATTER_TENSOR,
                OperationChecks.agreed(parts.part, op, 0),
                parts.part,
                operation -> {
                    operation.setWhole(parts.whole);
                    return backend.reduceScatter(operation, output, List.of(input), op);
                });
    }

    @Override
    public TensorInfo checkReduceScatter(NDArray output, NDArray input, ReduceOp op) {
        return checkedScatter(output, input, op).part;
    }

    private Parts checkedScatter(NDArray output, NDArray input, ReduceOp op) {
        OpType type = OpType.REDUCE_SCATTER_TENSOR;
        state.checkUsable();
        checks.reduction(type, op);
        TensorInfo[] infos = checks.both(type, "output", output, "input", input, op);
        TensorInfo out = infos[0];
        TensorInfo in = infos[1];
        checks.whole(type, "input", in, "output", out);
        checks.written(type, "output", out);
        checks.overlap(type, in, out, rank() * out.count());
        sent(type, input, in);
        return new Parts(in, out);
    }

    @Override
    public Work allToAll(List<NDArray> outputs, List<NDArray> inputs) {
        OpType type = OpType.ALL_TO_ALL;
        state.checkUsable();
        TensorInfo first = checks.exchanged(type, outputs, inputs);
        List<NDArray> to = List.copyOf(outputs);
        List<NDArray> from = List.copyOf(inputs);
        sent(type, from);
        return issue(
                type,
                new Agreed(first.type(), new long[0], null, 0),
                operation -> backend.allToAll(operation, to, from));
    }

    @Override
    public Work allToAllSingle(NDArray output, NDArray input, boolean asyncOp) {
        return allToAllSingle(output, input, null, null, asyncOp);
    }

    @Override
    public Work allToAllSingle(
            NDArray output, NDArray input, long[] outputSplits, long[] inputSplits) {
        return allToAllSingle(output, input, outputSplits, inputSplits, true);
    }

    private Work allToAllSingle(
            NDArray output,
            NDArray input,
            long[] outputSplits,
            long[] inputSplits,
            boolean asyncOp) {
        OpType type = OpType.ALL_TO_ALL_SINGLE;
        state.checkUsable();
        TensorInfo in = checks.moved(type, "input", input);
        TensorInfo out = checks.moved(type, "output", output);
        checks.written(type, "output", out);
        checks.sameType(type, "output", out, in);
        long[] outputCounts = checks.splits(type, "output", out, outputSplits);
        long[] inputCounts = checks.splits(type, "input", in, inputSplits);
        long[] row = OperationChecks.rowShape(type, out, in);
        if (outputCounts[rank()] != inputCounts[rank()]) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: rank %d sends itself %d elements, but its output takes %d; make"
                                    + " inputSplits[%d] and outputSplits[%d] equal",
                            type,
                            rank(),
                            inputCounts[rank()],
                            outputCounts[rank()],
                            rank(),
                            rank()));
        }
        checks.overlap(type, out, in, -1);
        sent(type, input, in);
        return issue(
                asyncOp,
                type,
                new Agreed(in.type(), row, null, 0),
                null,
                operation ->
                        backend.allToAllSingle(
                                operation, output, input, outputCounts, inputCounts));
    }

    @Override
    public Work send(NDArray tensor, int destination, int tag) {
        return message(P2pOp.send(tensor, destination, tag));
    }

    @Override
    public Work recv(NDArray tensor, int source, int tag) {
        return message(P2pOp.recv(tensor, source, tag));
    }

    @Override
    public Work recvAnySource(NDArray tensor, int tag) {
        return message(P2pOp.recvAnySource(tensor, tag));
    }

    private Work message(P2pOp op) {
        return issueMessage(op.type(), op.tensor(), checkMessage(op), op.peer(), op.tag());
    }

    @Override
    public List<Work> batchIsendIrecv(List<P2pOp> ops) {
        OperationChecks.present("batchIsendIrecv", "ops", ops);
        List<P2pOp> batch = List.copyOf(ops);
        List<TensorInfo> infos = batch.stream().map(this::checkMessage).toList();
        List<Work> works = new ArrayList<>();
        synchronized (state.issueLock()) {
            state.checkUsable();
            backend.startBatch();
            try {
                for (int i = 0; i < batch.size(); i++) {
                    P2pOp op = batch.get(i);
                    works.add(
                            issueMessage(
                                    op.type(), op.tensor(), infos.get(i), op.peer(), op.tag()));
                }
            } finally {
                backend.endBatch();
            }
        }
        return works;
    }

    private TensorInfo checkMessage(P2pOp op) {
        state.checkUsable();
        TensorInfo info = checks.moved(op.type(), "tensor", op.tensor());
        if (op.type() != OpType.SEND) {
            checks.written(op.type(), "tensor", info);
        }
        checks.tag(op.type(), op.tag());
        if (op.type() == OpType.RECV_ANY_SOURCE) {
            checks.anyPeer(op.type());
        } else {
            checks.peer(op.type(), op.type() == OpType.SEND ? "destination" : "source", op.peer());
        }
        if (op.type() == OpType.SEND) {
            sent(op.type(), op.tensor(), info);
        }
        return info;
    }

    /** Issues a group-internal message; its tag is negative. */
    public Work issueMessage(OpType type, NDArray tensor, int peer, int tag) {
        return issueMessage(type, tensor, Torch.info(tensor), peer, tag);
    }

    private Work issueMessage(OpType type, NDArray tensor, TensorInfo info, int peer, int tag) {
        return issue(
                type,
                OperationChecks.agreed(info, null, peer),
                info,
                tag,
                operation ->
                        type == OpType.SEND
                                ? backend.send(operation, tensor, peer, tag)
                                : backend.recv(operation, tensor, peer, tag));
    }

    @Override
    public Work barrier() {
        state.checkUsable();
        backend.checkSupported(OpType.BARRIER);
        return issue(OpType.BARRIER, new Agreed(null, new long[0], null, 0), backend::barrier);
    }

    @Override
    public void monitoredBarrier(Duration timeout, boolean waitAllRanks) {
        state.checkUsable();
        MonitoredBarrier.run(withTimeout(timeout), state.nextMonitoredBarrier(), waitAllRanks);
    }

    @Override
    public Work allReduceCoalesced(List<NDArray> tensors, ReduceOp op) {
        state.checkUsable();
        OperationChecks.present(OpType.ALL_REDUCE, "tensors", tensors);
        List<TensorInfo> infos = tensors.stream().map(tensor -> reduced(tensor, op)).toList();
        OperationChecks.apart(OpType.ALL_REDUCE, "tensors", infos);
        return Coalescing.allReduce(this, List.copyOf(tensors), infos, op);
    }

    @Override
    public Work allGatherCoalesced(List<NDArray> outputs, List<NDArray> inputs) {
        OpType type = OpType.ALL_GATHER_INTO_TENSOR;
        state.checkUsable();
        checkPairs(type, outputs, inputs);
        List<TensorInfo> infos = new ArrayList<>();
        for (int i = 0; i < inputs.size(); i++) {
            infos.add(checkAllGather(outputs.get(i), inputs.get(i)));
        }
        return Coalescing.allGather(this, List.copyOf(outputs), List.copyOf(inputs), infos);
    }

    @Override
    public Work reduceScatterCoalesced(List<NDArray> outputs, List<NDArray> inputs, ReduceOp op) {
        OpType type = OpType.REDUCE_SCATTER_TENSOR;
        state.checkUsable();
        checkPairs(type, outputs, inputs);
        List<TensorInfo> infos = new ArrayList<>();
        for (int i = 0; i < inputs.size(); i++) {
            infos.add(checkReduceScatter(outputs.get(i), inputs.get(i), op));
        }
        OperationChecks.apart(type, "outputs", infos);
        return Coalescing.reduceScatter(this, List.copyOf(outputs), List.copyOf(inputs), infos, op);
    }

    private static void checkPairs(OpType type, List<NDArray> outputs, List<NDArray> inputs) {
        OperationChecks.present(type, "outputs", outputs);
        OperationChecks.present(type, "inputs", inputs);
        if (outputs.size() != inputs.size()) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: got %d outputs and %d inputs; pass one output per input",
                            type, outputs.size(), inputs.size()));
        }
    }

    @Override
    public Work execute(OpType type, Agreed agreed, Consumer<Operation> body) {
        if (type == null || agreed == null || body == null) {
            throw new IllegalArgumentException(
                    String.format(
                            "execute: null argument: type %s, agreed %s, body %s",
                            type, agreed, body));
        }
        return issue(type, agreed, operation -> backend.execute(operation, body));
    }

    @Override
    public ProcessGroup newGroup(List<Integer> ranks) {
        return new SubGroups(this).newGroup(ranks, Optional.empty());
    }

    @Override
    public ProcessGroup newGroup(List<Integer> ranks, String name) {
        Required.argument("newGroup: name", name);
        return new SubGroups(this).newGroup(ranks, Optional.of(name));
    }

    @Override
    public ProcessGroup newGroup(
            List<Integer> ranks, String name, String backend, BackendOptions options) {
        Required.argument("newGroup: name", name);
        return new SubGroups(this, backend, options).newGroup(ranks, Optional.of(name));
    }

    @Override
    public ProcessGroup split(int color, int key) {
        return new SubGroups(this).split(color, key);
    }

    @Override
    public ProcessGroup shrink(List<Integer> ranksToExclude) {
        return new SubGroups(this).shrink(ranksToExclude);
    }

    @Override
    public ProcessGroup newGroup(String backend, BackendOptions options) {
        return new SubGroups(this, backend, options)
                .newGroup(IntStream.range(0, worldSize()).boxed().toList(), Optional.empty());
    }

    GroupState state() {
        return state;
    }

    @Override
    public void abort(Throwable cause) {
        Required.argument("abort: cause", cause);
        state.abort(GroupErrors.aborted(name(), cause));
    }

    @Override
    public Optional<CollectiveException> failure() {
        state.checkUsable();
        return backend.failure();
    }

    @Override
    public void destroy() {
        state.destroy();
    }

    @Override
    public String toString() {
        return state.toString();
    }

    /** Issues an operation with a tensor that must have the same type and shape on all ranks. */
    Work issue(
            OpType type,
            TensorInfo tensor,
            ReduceOp op,
            int index,
            Function<Operation, Work> call) {
        return issue(type, OperationChecks.agreed(tensor, op, index), tensor, 0, call);
    }

    Work issue(OpType type, Agreed agreed, Function<Operation, Work> call) {
        return issue(type, agreed, null, 0, call);
    }

    /** Issues an operation: every backend operation goes through here. */
    private Work issue(
            OpType type,
            Agreed agreed,
            TensorInfo tensor,
            int tag,
            Function<Operation, Work> call) {
        synchronized (state.issueLock()) {
            state.checkUsable();
            Operation operation = state.nextOperation(type, timeout, agreed, tag);
            operation.setTensor(tensor);
            operation.setForCopyEngines(copyEngines);
            operation.setKeeper(keeper);
            operation.setTrace(state.trace().scheduled(operation));
            try {
                Work work = call.apply(operation);
                state.issued(operation);
                return work;
            } catch (RuntimeException | Error e) {
                if (operation.isAnnounced() || e instanceof CollectiveMismatchException) {
                    // Other ranks know the operation: it uses its number although it cannot run
                    // here.
                    state.issued(operation);
                    operation.ended(e);
                } else {
                    operation.withdrawn();
                    if (GroupErrors.isLocal(e)) {
                        backend.abort(GroupErrors.failed(operation, e)); // Other ranks would wait.
                    }
                }
                throw e;
            }
        }
    }
}
