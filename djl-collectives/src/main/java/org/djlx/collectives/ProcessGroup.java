/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.collectives.trace.FlightRecorder;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's handle on a group of ranks that communicate; the counterpart of {@code
 * torch.distributed.ProcessGroup}.
 *
 * <p>Every rank of the group calls the same operations in the same order, with tensors of the same
 * element type, and of the same shape where a method says so. An operation returns at once with a
 * {@link Work}; the operations of a group run one after the other in the order of the calls, those
 * of different groups do not wait for each other. On GPUs an operation begins when the caller's
 * current stream has done what it was given before, and that stream goes on meanwhile: wait for the
 * work, by {@link Work#await()} or {@link Work#blockCurrentStream()}, before what uses a result is
 * enqueued. Only what {@link #execute} enqueues takes its turn on the current stream itself, and
 * all-reduces {@linkplain #allReduce(NDArray, ReduceOp, boolean) that are waited for}, see {@link
 * CudaP2pOptions}. Tensors are PyTorch arrays on the device of the group's backend and need not be
 * contiguous. Autograd does not see the operations; {@link
 * org.djlx.collectives.gradient.DifferentiableCollectives} has some through which gradients flow.
 *
 * <pre>{@code
 * Work work = group.allReduce(gradient, ReduceOp.AVG); // returns at once
 * work.await(); // throws what went wrong, naming operation, group and ranks
 * }</pre>
 *
 * <p>Groups of some of the ranks number them anew; roots are ranks of the group that is called:
 *
 * <pre>{@code
 * ProcessGroup half = group.split(group.rank() % 2, group.rank());
 * half.broadcast(weights, 0).await(); // from the first rank of the half
 * half.destroy();
 * }</pre>
 *
 * <p>{@linkplain #send Messages} between two ranks are apart from that: only those two call, and
 * messages wait neither for the group's other operations nor those for them. On GPUs a message
 * waits for what the caller's current stream has been given, which is an operation before it only
 * if that stream has been told to wait for its work, or runs it as {@link #execute} does. The first
 * message between two ranks sets up a communicator of their own, for which NCCL may wait until
 * collectives of its own that are under way have ended.
 *
 * <p>An output must not share memory with an input, unless it is the same tensor or the one is this
 * rank's part of the other, in its place: all-gather from a slice of the output and reduce-scatter
 * into a slice of the input work in place, without a copy of that part.
 *
 * <p>A wrong argument throws {@link IllegalArgumentException} before anything is sent. A rank that
 * does not arrive within the timeout makes the others fail with a {@link
 * CollectiveTimeoutException}; from then on the group is broken: destroy it and create another.
 * Calls that do not fit together across ranks fail on every rank with a {@link CollectiveException}
 * that names what each called; mostly it is a {@link CollectiveMismatchException}. Whether the
 * group then stays usable depends on when the backend compares:
 *
 * <ul>
 *   <li>{@code shm}: before anything is changed; the group stays usable.
 *   <li>{@code nccl}: only if its options {@linkplain NcclOptions.Builder#optVerify verify}, and
 *       then as {@code shm}. Otherwise calls that differ hang until the timeout, or give wrong
 *       results. The same holds of the messages and the sizes of all-to-alls of {@code cuda_p2p}.
 *   <li>{@code cuda_p2p}: behind the calls, as hosts do not wait for each other; the group breaks.
 *       If its options for NCCL verify, as {@code shm}. Where there is no P2P memory, as {@code
 *       nccl}.
 * </ul>
 *
 * <p>Methods are thread-safe, but if several threads issue operations on one group it is up to them
 * that the order is the same on all ranks.
 */
public final class ProcessGroup implements AutoCloseable {

    private static final Variant PLAIN_ALL_REDUCE = new Variant(OpType.ALL_REDUCE);

    private final GroupState state;
    private final Lifeline lifeline; // null if this rank is not a member
    private final Backend backend;
    private final OperationChecks checks;
    private final Duration timeout;

    ProcessGroup(
            GroupContext context,
            Backend backend,
            String job,
            List<Integer> ranks,
            Runnable onDestroy) {
        this(new GroupState(null, context, backend, job, ranks, onDestroy), null);
    }

    private ProcessGroup(GroupState state, ProcessGroup parent) {
        this(
                state,
                new Lifeline(state, parent == null ? null : parent.lifeline),
                state.context().options().timeout());
    }

    private ProcessGroup(GroupState state, Lifeline lifeline, Duration timeout) {
        this.state = state;
        this.lifeline = lifeline;
        this.backend = state.backend();
        this.checks = new OperationChecks(backend, state.rank(), state.worldSize());
        this.timeout = timeout;
    }

    /** Creates this rank's handle on a group of some ranks of another. */
    static ProcessGroup part(
            ProcessGroup parent, GroupContext context, Backend backend, List<Integer> ranks) {
        GroupState whole = parent.state;
        String job = whole.trace().job();
        boolean done = false;
        try {
            GroupState state = new GroupState(whole, context, backend, job, ranks, () -> {});
            ProcessGroup group = new ProcessGroup(state, parent);
            whole.addSubGroup(state);
            done = true;
            return group;
        } finally {
            if (!done) {
                backend.close(); // Memory has run out; nobody else knows of it.
            }
        }
    }

    /** Creates the handle that a rank gets of a group that it is not in. */
    static ProcessGroup nonMember(String name, List<Integer> ranks, ProcessGroup parent) {
        return new ProcessGroup(
                new GroupState(name, ranks, parent.state, parent.toString()),
                (Lifeline) null,
                parent.timeout);
    }

    /**
     * Returns this rank.
     *
     * @return the rank within the group, from 0; -1 if this rank is not a {@linkplain #isMember
     *     member}
     */
    public int rank() {
        return state.rank();
    }

    /**
     * Returns the number of ranks.
     *
     * @return the world size
     */
    public int worldSize() {
        return state.worldSize();
    }

    /**
     * Returns who the ranks of this group are in the group that was initialised, from which it was
     * made in one step or several; the counterpart of {@code
     * torch.distributed.get_process_group_ranks}. Roots and peers of operations are ranks of this
     * group, unlike c10d's: {@link #globalRank} and {@link #groupRank} translate. A rank of one
     * group is found in any other by way of the global ranks: {@code
     * other.groupRank(group.globalRank(rank))}.
     *
     * @return the global rank of each rank of this group, in the order of the ranks
     */
    public List<Integer> ranks() {
        return state.ranks();
    }

    /**
     * Returns who the ranks of this group are in the group of which {@link #newGroup} or {@link
     * #split} made it.
     *
     * @return the rank there of each rank of this group, in the order of the ranks; in a group that
     *     was initialised, the ranks themselves
     */
    public List<Integer> parentRanks() {
        return state.parentRanks();
    }

    /**
     * Translates a rank of this group.
     *
     * @param groupRank the rank, from 0
     * @return its rank in the group that was initialised
     * @throws IllegalArgumentException if there is no such rank
     */
    public int globalRank(int groupRank) {
        if (groupRank < 0 || groupRank >= worldSize()) {
            throw new IllegalArgumentException(
                    String.format(
                            "rank %d lies outside of the group '%s' of %d ranks",
                            groupRank, name(), worldSize()));
        }
        return ranks().get(groupRank);
    }

    /**
     * Translates a rank of the group that was initialised.
     *
     * @param globalRank the rank there
     * @return its rank in this group
     * @throws IllegalArgumentException if it is not in this group
     */
    public int groupRank(int globalRank) {
        int rank = ranks().indexOf(globalRank);
        if (rank < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "the global rank %d is not in the group '%s', whose ranks are %s",
                            globalRank, name(), ranks()));
        }
        return rank;
    }

    /**
     * Tells whether this rank is in the group. The handle of a rank that is not, as {@link
     * #newGroup} returns it, knows the group's name and ranks and nothing else: every operation
     * throws {@link IllegalStateException}, and {@link #destroy} does nothing. The counterpart of
     * {@code torch.distributed.GroupMember.NON_GROUP_MEMBER}.
     *
     * @return whether it is
     */
    public boolean isMember() {
        return rank() >= 0;
    }

    /**
     * Returns the group's name. No two groups created from one group have the same.
     *
     * @return the name, the same on all ranks
     */
    public String name() {
        return state.name();
    }

    /**
     * Returns the device that the group's tensors must be on.
     *
     * @return the device
     */
    public Device device() {
        return backend.device();
    }

    /**
     * Returns the name of the group's backend.
     *
     * @return the name
     */
    public String backendName() {
        return backend.name();
    }

    /**
     * Returns the record of this rank's last operations; also after the group was destroyed.
     *
     * @return the recorder
     * @throws IllegalStateException if this rank is not a member of the group
     */
    public FlightRecorder flightRecorder() {
        return state.trace().recorder();
    }

    /**
     * Returns how long operations wait for other ranks.
     *
     * @return the timeout
     */
    public Duration timeout() {
        return timeout;
    }

    /**
     * Returns a view of this group whose operations have another timeout: the way to give a single
     * call one of its own. It is the same group, also to {@link #destroy}. With {@code shm} the
     * time of an operation counts from when it begins to run, which it does after those issued
     * before it, each with its own timeout; that of a message counts from the call.
     *
     * @param timeout how long the view's operations wait for other ranks
     * @return the view
     */
    public ProcessGroup withTimeout(Duration timeout) {
        return new ProcessGroup(state, lifeline, BackendOptions.checked(timeout));
    }

    /**
     * Tells whether the ranks can write into each other's memory.
     *
     * @return whether there are {@link #p2pBuffers()}; the same on all ranks
     */
    public boolean isP2pAvailable() {
        return p2pBuffers().isPresent();
    }

    /**
     * Returns the group's symmetric memory.
     *
     * @return the buffers; empty if the group has none, which is then so on all ranks
     */
    public Optional<P2pBuffers> p2pBuffers() {
        state.checkUsable();
        return backend.p2pBuffers();
    }

    /**
     * Returns what a library keeps for this group on this rank, such as plans of its operations:
     * made when it is first asked for, and closed when the group has been destroyed and nothing of
     * it runs any more. Views of the group have the same. It must not refer to the group: a group
     * that was forgotten would not be freed.
     *
     * @param type the class of what is kept, of which there is one
     * @param maker makes it; must not use the group
     * @param <T> the class
     * @return what is kept
     * @throws IllegalStateException if the group has been destroyed
     */
    public <T extends AutoCloseable> T attachment(Class<T> type, Supplier<T> maker) {
        Required.argument("attachment: type", type);
        Required.argument("attachment: maker", maker);
        return type.cast(state.attachment(type, maker));
    }

    /**
     * Reduces a tensor over all ranks; every rank gets the result, the same to the bit.
     *
     * @param tensor this rank's contribution, replaced by the result; the same shape on all ranks
     * @param op how to reduce
     * @return the work
     */
    public Work allReduce(NDArray tensor, ReduceOp op) {
        return allReduce(PLAIN_ALL_REDUCE, tensor, op);
    }

    /**
     * Reduces a tensor over all ranks, as {@link #allReduce(NDArray, ReduceOp)}; with {@code
     * asyncOp=false}, c10d's default, the caller goes on behind it and needs no work: on the CPU
     * the call returns when the tensor has the result, on GPUs what follows on the current stream
     * finds it there. So {@code cuda_p2p} can reduce on the current stream itself, which takes the
     * host half as many calls of the driver.
     *
     * @param tensor this rank's contribution, replaced by the result; the same shape on all ranks
     * @param op how to reduce
     * @param asyncOp whether the caller waits for the work itself; ranks may differ in this
     * @return the work; with {@code asyncOp=false} only to learn later whether the operation failed
     *     on the GPU
     * @throws CollectiveException with {@code asyncOp=false}, if the operation has failed, on GPUs
     *     if that is known already
     * @throws IllegalStateException with {@code asyncOp=false} on GPUs in a batch, whose operations
     *     begin when it ends; before anything is sent
     */
    public Work allReduce(NDArray tensor, ReduceOp op, boolean asyncOp) {
        if (asyncOp) {
            return allReduce(tensor, op);
        }
        TensorInfo info = reduced(tensor, op);
        Work work =
                issue(
                        OpType.ALL_REDUCE,
                        info,
                        op,
                        0,
                        operation -> backend.allReduceInOrder(operation, tensor, op));
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
        return info;
    }

    /**
     * What is special about an operation that another is made of.
     *
     * @param type its name
     * @param index a number on which all ranks must agree
     */
    record Variant(OpType type, int index) {

        Variant(OpType type) {
            this(type, 0);
        }
    }

    Work allReduce(Variant variant, NDArray tensor, ReduceOp op) {
        return issue(
                variant.type(),
                reduced(tensor, op),
                op,
                variant.index(),
                operation -> backend.allReduce(operation, tensor, op));
    }

    /**
     * Reduces a tensor over all ranks; one rank gets the result, with the bits of {@link
     * #allReduce}.
     *
     * @param tensor this rank's contribution, replaced by the result on the root and unchanged
     *     elsewhere; the same shape on all ranks
     * @param root the rank that gets the result: a rank of this group, also of a sub-group, while
     *     c10d counts the whole job's
     * @param op how to reduce
     * @return the work
     */
    public Work reduce(NDArray tensor, int root, ReduceOp op) {
        state.checkUsable();
        TensorInfo info = checks.reduced(OpType.REDUCE, "tensor", tensor, op);
        checks.root(OpType.REDUCE, root);
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

    /**
     * Sends a tensor from one rank to all others.
     *
     * @param tensor what to send on the root; elsewhere, where it goes; the same shape on all ranks
     * @param root the rank that sends: a rank of this group, also of a sub-group, while c10d counts
     *     the whole job's
     * @return the work
     */
    public Work broadcast(NDArray tensor, int root) {
        state.checkUsable();
        TensorInfo info = checks.moved(OpType.BROADCAST, "tensor", tensor);
        checks.root(OpType.BROADCAST, root);
        if (rank() != root) {
            checks.written(OpType.BROADCAST, "tensor", info);
        }
        return issue(
                OpType.BROADCAST,
                info,
                null,
                root,
                operation -> backend.broadcast(operation, tensor, root));
    }

    /**
     * Gathers the tensors of all ranks on every rank.
     *
     * @param outputs where the tensors go, one for each rank, each of the input's shape
     * @param input this rank's tensor; the same shape on all ranks
     * @return the work
     */
    public Work allGather(List<NDArray> outputs, NDArray input) {
        OpType type = OpType.ALL_GATHER;
        state.checkUsable();
        TensorInfo in = checks.moved(type, "input", input);
        List<TensorInfo> out = checks.alike(type, "outputs", outputs, in, null);
        List<NDArray> tensors = List.copyOf(outputs);
        for (int peer = 0; peer < worldSize(); peer++) {
            checks.written(type, "outputs", out.get(peer));
            checks.overlap(type, out.get(peer), in, peer == rank() ? 0 : -1);
        }
        return issue(type, in, null, 0, operation -> backend.allGather(operation, tensors, input));
    }

    /**
     * Gathers the tensors of all ranks into one tensor on every rank, in rank order: concatenated
     * along the first dimension, or stacked.
     *
     * @param output where the tensors go; world size times as many elements as the input
     * @param input this rank's tensor; the same shape on all ranks
     * @return the work
     */
    public Work allGatherIntoTensor(NDArray output, NDArray input) {
        return allGatherIntoTensor(new Variant(OpType.ALL_GATHER_INTO_TENSOR), output, input);
    }

    /**
     * Checks the arguments of {@link #allGatherIntoTensor}, for an operation of one's own that does
     * the same.
     *
     * @param output where the tensors would go
     * @param input this rank's tensor
     * @return what is known of the input
     * @throws IllegalArgumentException if one is wrong
     */
    public TensorInfo checkAllGather(NDArray output, NDArray input) {
        OpType type = OpType.ALL_GATHER_INTO_TENSOR;
        state.checkUsable();
        TensorInfo in = checks.moved(type, "input", input);
        TensorInfo out = checks.moved(type, "output", output);
        checks.whole(type, "output", out, "input", in);
        checks.written(type, "output", out);
        checks.overlap(type, out, in, rank() * in.count());
        return in;
    }

    Work allGatherIntoTensor(Variant variant, NDArray output, NDArray input) {
        TensorInfo in = checkAllGather(output, input);
        return issue(
                variant.type(),
                in,
                null,
                variant.index(),
                operation -> backend.allGather(operation, List.of(output), input));
    }

    /**
     * Gathers the tensors of all ranks on one rank.
     *
     * @param outputs on the root, where the tensors go, one for each rank, each of the input's
     *     shape; null elsewhere
     * @param input this rank's tensor; the same shape on all ranks
     * @param root the rank that gets them: a rank of this group, also of a sub-group, while c10d
     *     counts the whole job's
     * @return the work, whose result are the outputs
     */
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
        return issue(
                type, in, null, root, operation -> backend.gather(operation, tensors, input, root));
    }

    /**
     * Sends a tensor from one rank to each rank.
     *
     * @param output where this rank's tensor goes; the same shape on all ranks
     * @param inputs on the root, a tensor for each rank, each of the output's shape; null elsewhere
     * @param root the rank that sends: a rank of this group, also of a sub-group, while c10d counts
     *     the whole job's
     * @return the work
     */
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
        return issue(
                type,
                out,
                null,
                root,
                operation -> backend.scatter(operation, output, tensors, root));
    }

    /**
     * Reduces a list of tensors over all ranks; every rank gets the one at its own place.
     *
     * @param output where the result goes; the same shape on all ranks
     * @param inputs a tensor for each rank, each of the output's shape
     * @param op how to reduce
     * @return the work
     */
    public Work reduceScatter(NDArray output, List<NDArray> inputs, ReduceOp op) {
        OpType type = OpType.REDUCE_SCATTER;
        state.checkUsable();
        TensorInfo out = checks.reduced(type, "output", output, op);
        List<TensorInfo> in = checks.alike(type, "inputs", inputs, out, op);
        checks.written(type, "output", out);
        List<NDArray> tensors = List.copyOf(inputs);
        for (int peer = 0; peer < worldSize(); peer++) {
            checks.overlap(type, in.get(peer), out, peer == rank() ? 0 : -1);
        }
        return issue(
                type,
                out,
                op,
                0,
                operation -> backend.reduceScatter(operation, output, tensors, op));
    }

    /**
     * Reduces a tensor over all ranks and scatters the result along its first dimension, in rank
     * order.
     *
     * @param output where this rank's part goes; the same shape on all ranks
     * @param input the whole tensor; world size times as many elements as the output
     * @param op how to reduce
     * @return the work
     */
    public Work reduceScatterTensor(NDArray output, NDArray input, ReduceOp op) {
        return reduceScatterTensor(new Variant(OpType.REDUCE_SCATTER_TENSOR), output, input, op);
    }

    /**
     * Checks the arguments of {@link #reduceScatterTensor}, for an operation of one's own that does
     * the same.
     *
     * @param output where this rank's part would go
     * @param input the whole tensor
     * @param op how to reduce
     * @return what is known of the output
     * @throws IllegalArgumentException if one is wrong
     */
    public TensorInfo checkReduceScatter(NDArray output, NDArray input, ReduceOp op) {
        OpType type = OpType.REDUCE_SCATTER_TENSOR;
        state.checkUsable();
        TensorInfo out = checks.reduced(type, "output", output, op);
        TensorInfo in = checks.reduced(type, "input", input, op);
        checks.whole(type, "input", in, "output", out);
        checks.written(type, "output", out);
        checks.overlap(type, in, out, rank() * out.count());
        return out;
    }

    Work reduceScatterTensor(Variant variant, NDArray output, NDArray input, ReduceOp op) {
        TensorInfo out = checkReduceScatter(output, input, op);
        return issue(
                variant.type(),
                out,
                op,
                variant.index(),
                operation -> backend.reduceScatter(operation, output, List.of(input), op));
    }

    /**
     * Sends a tensor from every rank to every rank. What one rank has for another must have as many
     * elements as that expects; apart from that, all tensors may be of different shapes.
     *
     * @param outputs where the tensors go, one from each rank
     * @param inputs a tensor for each rank; all of the same element type
     * @return the work
     */
    public Work allToAll(List<NDArray> outputs, List<NDArray> inputs) {
        OpType type = OpType.ALL_TO_ALL;
        state.checkUsable();
        TensorInfo first = checks.exchanged(type, outputs, inputs);
        List<NDArray> to = List.copyOf(outputs);
        List<NDArray> from = List.copyOf(inputs);
        return issue(
                type,
                new Agreed(first.type(), new long[0], null, 0),
                operation -> backend.allToAll(operation, to, from));
    }

    /**
     * Sends a part of a tensor from every rank to every rank, all parts being of the same size.
     *
     * @param output where the parts from all ranks go, one after the other along the first
     *     dimension, in rank order
     * @param input the parts for all ranks, in rank order; its first dimension, like that of the
     *     output, is divisible by the world size
     * @return the work
     */
    public Work allToAllSingle(NDArray output, NDArray input) {
        return allToAllSingle(output, input, null, null);
    }

    /**
     * Sends a part of a tensor from every rank to every rank. The split that one rank has for
     * another must equal the split that the other has from it; if not, the call fails on all ranks
     * and nothing is changed (by NCCL, only if it verifies).
     *
     * @param output where the parts from all ranks go, one after the other along the first
     *     dimension, in rank order
     * @param input the parts for all ranks, in rank order
     * @param outputSplits how many rows of the output come from each rank; null for equal parts
     * @param inputSplits how many rows of the input go to each rank; null for equal parts
     * @return the work
     */
    public Work allToAllSingle(
            NDArray output, NDArray input, long[] outputSplits, long[] inputSplits) {
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
                            "%s: the input has %d elements for this rank, %d, itself, the output"
                                    + " has room for %d",
                            type, inputCounts[rank()], rank(), outputCounts[rank()]));
        }
        checks.overlap(type, out, in, -1);
        return issue(
                type,
                new Agreed(in.type(), row, null, 0),
                operation ->
                        backend.allToAllSingle(
                                operation, output, input, outputCounts, inputCounts));
    }

    /**
     * Sends a message to one rank, which {@linkplain #recv receives} it. Like c10d's {@code isend}:
     * it goes on by itself. The work ends when the whole message has been handed over, which the
     * other rank must have asked for.
     *
     * <p>Messages of the same tag between the same ranks arrive in the order in which they were
     * sent; those of different tags, or to different ranks, do not wait for each other. If the
     * receiver expects another element type or number of elements, both calls fail with a {@link
     * CollectiveMismatchException}. A message that nobody asks for in time fails and is withdrawn:
     * the group stays usable.
     *
     * <p>NCCL has no tags: it matches the messages from one rank to another in their order, and
     * compares them only if it verifies. A late one breaks the messages of its direction between
     * these two ranks; the rest of the group stays usable.
     *
     * @param tensor what to send
     * @param destination the rank to send it to, not this one: a rank of this group, also of a
     *     sub-group, while c10d counts the whole job's
     * @param tag what tells messages between two ranks apart; not negative
     * @return the work
     */
    public Work send(NDArray tensor, int destination, int tag) {
        return message(P2pOp.send(tensor, destination, tag));
    }

    /**
     * Receives a message from one rank. Like c10d's {@code irecv}: it goes on by itself.
     *
     * @param tensor where the message goes; of the element type and number of elements of what is
     *     sent
     * @param source the rank that sends, not this one: a rank of this group, also of a sub-group,
     *     while c10d counts the whole job's
     * @param tag the message's tag; not negative
     * @return the work
     * @see #send
     */
    public Work recv(NDArray tensor, int source, int tag) {
        return message(P2pOp.recv(tensor, source, tag));
    }

    /**
     * Receives a message from whichever rank sends one first.
     *
     * @param tensor where the message goes
     * @param tag the message's tag; not negative
     * @return the work, which tells the {@linkplain Work#sourceRank() source}
     * @see #send
     */
    public Work recvAnySource(NDArray tensor, int tag) {
        return message(P2pOp.recvAnySource(tensor, tag));
    }

    private Work message(P2pOp op) {
        return issueMessage(op.type(), op.tensor(), checkMessage(op), op.peer(), op.tag());
    }

    /**
     * Issues sends and receives that go on at the same time, none waiting for another; the
     * counterpart of {@code torch.distributed.batch_isend_irecv}. All are checked before any is
     * issued.
     *
     * @param ops the sends and receives
     * @return their works, in the same order
     */
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
        return info;
    }

    /** Issues a message of the group's own, whose tag is negative. */
    Work issueMessage(OpType type, NDArray tensor, int peer, int tag) {
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

    /**
     * Completes when all ranks have called it.
     *
     * @return the work
     */
    public Work barrier() {
        state.checkUsable();
        backend.checkSupported(OpType.BARRIER);
        return issue(OpType.BARRIER, new Agreed(null, new long[0], null, 0), backend::barrier);
    }

    /**
     * Waits until all ranks have called it, or finds out who has not; the counterpart of {@code
     * torch.distributed.monitored_barrier}. It is made of messages: rank 0 hears from all others
     * within the timeout, then tells them how it ended. It does not wait for operations under way,
     * and the group stays usable, whatever the outcome.
     *
     * <p>Rank 0 and all ranks that have reached it in time throw the same exception. A rank that
     * comes later than that does not hear from rank 0: its own call times out, naming rank 0.
     *
     * @param timeout how long to wait for the other ranks
     * @param waitAllRanks whether rank 0 waits the whole timeout and names all ranks that are
     *     missing; if false, it ends with the first that it finds to be
     * @throws CollectiveTimeoutException if ranks are missing, with those; on a rank that rank 0
     *     does not answer, with rank 0
     */
    public void monitoredBarrier(Duration timeout, boolean waitAllRanks) {
        state.checkUsable();
        MonitoredBarrier.run(withTimeout(timeout), state.nextMonitoredBarrier(), waitAllRanks);
    }

    /**
     * All-reduces several tensors as one operation for each element type.
     *
     * @param tensors contributions, replaced by the results; the same shapes on all ranks. They do
     *     not overlap in memory
     * @param op how to reduce
     * @return the work
     * @throws IllegalArgumentException as {@link #allReduce}, and if tensors overlap
     * @see #allReduce
     */
    public Work allReduceCoalesced(List<NDArray> tensors, ReduceOp op) {
        state.checkUsable();
        OperationChecks.present(OpType.ALL_REDUCE, "tensors", tensors);
        List<TensorInfo> infos = new ArrayList<>();
        for (NDArray tensor : tensors) {
            TensorInfo info = checks.reduced(OpType.ALL_REDUCE, "tensor", tensor, op);
            checks.written(OpType.ALL_REDUCE, "tensor", info);
            infos.add(info);
        }
        OperationChecks.apart(OpType.ALL_REDUCE, "tensors", infos);
        return Coalescing.allReduce(this, List.copyOf(tensors), infos, op);
    }

    /**
     * All-gathers several tensors as one operation for each element type.
     *
     * @param outputs for each input, the tensor into which those of all ranks go. None overlaps
     *     another's input or output in memory; an input may be this rank's part of its own
     * @param inputs this rank's tensors; the same shapes on all ranks
     * @return the work
     * @see #allGatherIntoTensor
     */
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

    /**
     * Reduce-scatters several tensors as one operation for each element type.
     *
     * @param outputs where this rank's parts go; the same shapes on all ranks. None overlaps
     *     another's input or output in memory
     * @param inputs for each output, the whole tensor
     * @param op how to reduce
     * @return the work
     * @throws IllegalArgumentException as {@link #reduceScatterTensor}, and if outputs overlap
     * @see #reduceScatterTensor
     */
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
                            "%s: there must be as many outputs as inputs, not %d and %d",
                            type, outputs.size(), inputs.size()));
        }
    }

    /**
     * Runs code as one operation of the group, in its turn among the others: the way for a library
     * to add operations that use {@link #p2pBuffers()}. The code must itself call {@link
     * P2pBuffers#awaitAgreement} before it uses what other ranks sent, and must not issue
     * operations on the group. If it throws, the group is broken; except that {@code shm} stays
     * usable after a {@link CollectiveMismatchException}, which all ranks get.
     *
     * @param type the kind of operation
     * @param agreed what all ranks must agree on
     * @param body the code; runs once, on this thread or another
     * @return the work
     * @throws UnsupportedOperationException if the backend can not
     */
    public Work execute(OpType type, Agreed agreed, Consumer<Operation> body) {
        if (type == null || agreed == null || body == null) {
            throw new IllegalArgumentException(
                    "execute: the type (" + type + "), what is agreed on, or the body is null");
        }
        return issue(
                type,
                agreed,
                operation -> backend.execute(operation, () -> body.accept(operation)));
    }

    /**
     * Creates a group of some of this group's ranks, named after this group; see {@link
     * #newGroup(List, String)}.
     *
     * @param ranks ranks of this group
     * @return the group
     */
    public ProcessGroup newGroup(List<Integer> ranks) {
        return SubGroups.newGroup(this, ranks, null);
    }

    /**
     * Creates a group of some of this group's ranks. All ranks of this group call it, also those
     * that will not be members, with the same arguments, as they call an operation. Ranks of the
     * new group are in the order of the ranks here, however they are given. It has the same backend
     * and options and is independent of this group, except that {@linkplain #destroy destroying}
     * this group destroys it too.
     *
     * @param ranks ranks of this group, each once
     * @param name what the group is called within this group: its {@linkplain #name full name} is
     *     this group's, a dot, and this. Without a dot, not a number, and given once in the life of
     *     this group, even if the group that has it was destroyed
     * @return the group; on a rank that is not among them, a handle that is no {@linkplain
     *     #isMember member}
     * @throws IllegalArgumentException if a rank or the name is wrong; on all ranks if this group
     *     has given the name before
     * @throws CollectiveException if the ranks do not agree or come together; one that is not there
     *     in time is named by its rank in this group
     */
    public ProcessGroup newGroup(List<Integer> ranks, String name) {
        if (name == null) {
            throw new IllegalArgumentException("newGroup: name is null");
        }
        return SubGroups.newGroup(this, ranks, name);
    }

    /**
     * Divides this group into groups of ranks that pass the same color. All ranks of this group
     * call it, as they call an operation. Apart from that, see {@link #newGroup(List, String)}.
     *
     * @param color which group this rank is to be in; negative for none
     * @param key the ranks of a new group are in the order of their keys, and with equal keys in
     *     the order of the ranks here
     * @return the group with that color; with a negative color, a handle that is no {@linkplain
     *     #isMember member}
     * @throws CollectiveException if the ranks do not come together
     */
    public ProcessGroup split(int color, int key) {
        return SubGroups.split(this, color, key);
    }

    GroupState state() {
        return state;
    }

    /**
     * Leaves the group: everything the group holds is freed, sub-groups of it are destroyed as
     * well, and further calls throw {@link IllegalStateException}. Idempotent.
     *
     * <p>What becomes of operations under way depends on whether their results may be in use:
     *
     * <ul>
     *   <li>On GPUs a stream may have been told to wait for them. So this call first waits until
     *       they have ended. Those that other ranks do not call fail, as they do at any time: after
     *       their timeout, when such a rank has died or, with {@code cuda_p2p} and except for
     *       messages, when it has destroyed the group. If the thread is interrupted it does not
     *       wait, and they fail; results that a stream waits for are then worthless. It does not
     *       wait for graphs: wait for the streams to which they were launched before.
     *   <li>With {@code shm} only the host can wait for them. Those that nobody has waited for fail
     *       at once, with an error that says why.
     * </ul>
     *
     * <p>Memory of GPUs that other ranks have mapped is freed when these have left, too, and when
     * their GPUs have come to the end of what they run: maybe after this call has returned.
     *
     * <p>A group that was forgotten is destroyed after some time, and the log says so, once for a
     * group. That is a net, and depends on when the JVM collects garbage. A group is forgotten when
     * nothing refers to a handle on it any more, to a view or to a sub-group, and no operation of
     * it is under way on this rank: what was issued ends first, whether or not somebody keeps the
     * {@link Work}. What was taken from the group, such as its {@linkplain #p2pBuffers() buffers}
     * and arrays in them, does not count. One of whose operations went into a CUDA graph is never
     * forgotten.
     */
    public void destroy() {
        state.destroy();
    }

    /** The same as {@link #destroy()}. */
    @Override
    public void close() {
        destroy();
    }

    @Override
    public String toString() {
        return "ProcessGroup("
                + name()
                + ", "
                + (isMember() ? "rank " + rank() : "not a member")
                + " of "
                + worldSize()
                + ", "
                + backendName()
                + ")";
    }

    /** Issues an operation on whose tensor all ranks agree. */
    private Work issue(
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

    /** Issues an operation; the only way to the backend's operations. */
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
            operation.setGroup(lifeline);
            operation.setTrace(state.trace().scheduled(operation));
            try {
                Work work = call.apply(operation);
                state.issued(operation);
                return work;
            } catch (CollectiveMismatchException e) {
                // The ranks have called it, though it cannot be enqueued.
                state.issued(operation);
                operation.ended(e);
                throw e;
            } catch (RuntimeException | Error e) {
                operation.withdrawn();
                throw e;
            }
        }
    }
}
