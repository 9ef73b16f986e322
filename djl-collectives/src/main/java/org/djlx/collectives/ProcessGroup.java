/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import org.djlx.collectives.Operation.Agreed;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * One rank's handle on a group of ranks that communicate; the counterpart of {@code
 * torch.distributed.ProcessGroup}.
 *
 * <p>Every rank of the group calls the same operations in the same order, with tensors of the same
 * element type, and of the same shape where a method says so. An operation returns at once with a
 * {@link Work}; the operations of a group run one after the other in the order of the calls, those
 * of different groups do not wait for each other. Tensors are PyTorch arrays on the device of the
 * group's backend and need not be contiguous. Autograd does not see the operations.
 *
 * <p>A wrong argument throws {@link IllegalArgumentException} before anything is sent. Calls that
 * do not fit together across ranks fail on every rank with a {@link CollectiveException} that names
 * what each called, and leave the group usable. A rank that does not arrive within the timeout
 * makes the others fail with a {@link CollectiveTimeoutException}; from then on the group is
 * broken.
 *
 * <p>Methods are thread-safe, but if several threads issue operations on one group it is up to them
 * that the order is the same on all ranks.
 */
public final class ProcessGroup implements AutoCloseable {

    private final GroupContext context;
    private final Backend backend;
    private final Runnable onDestroy;
    private final FlightRecorder recorder;
    private final Object issueLock = new Object();
    private long sequence;
    private volatile boolean destroyed;

    ProcessGroup(GroupContext context, Backend backend, Runnable onDestroy) {
        this.context = context;
        this.backend = backend;
        this.onDestroy = onDestroy;
        this.recorder = FlightRecorder.open(context, backend.name());
    }

    /**
     * Returns this rank.
     *
     * @return the rank within the group, from 0
     */
    public int rank() {
        return context.rank();
    }

    /**
     * Returns the number of ranks.
     *
     * @return the world size
     */
    public int worldSize() {
        return context.worldSize();
    }

    /**
     * Returns the group's name.
     *
     * @return the name, the same on all ranks
     */
    public String name() {
        return context.name();
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
     */
    public FlightRecorder flightRecorder() {
        return recorder;
    }

    /**
     * Returns the group's symmetric memory.
     *
     * @return the buffers; empty if the group has none, which is then so on all ranks
     */
    public Optional<P2pBuffers> p2pBuffers() {
        checkUsable();
        return backend.p2pBuffers();
    }

    /**
     * Reduces a tensor over all ranks; every rank gets the result, the same to the bit.
     *
     * @param tensor this rank's contribution, replaced by the result; the same shape on all ranks
     * @param op how to reduce
     * @return the work
     */
    public Work allReduce(NDArray tensor, ReduceOp op) {
        checkReduce(OpType.ALL_REDUCE, tensor, op);
        return issue(
                OpType.ALL_REDUCE,
                agreed(tensor, op, 0),
                operation -> backend.allReduce(operation, tensor, op));
    }

    /**
     * Sends a tensor from one rank to all others.
     *
     * @param tensor what to send on the root; elsewhere, where it goes; the same shape on all ranks
     * @param root the rank that sends
     * @return the work
     */
    public Work broadcast(NDArray tensor, int root) {
        check(OpType.BROADCAST, "tensor", tensor);
        checkRank("root", root);
        return issue(
                OpType.BROADCAST,
                agreed(tensor, null, root),
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
        check(OpType.ALL_GATHER, "input", input);
        checkList(OpType.ALL_GATHER, "outputs", outputs, input);
        List<NDArray> tensors = List.copyOf(outputs);
        return issue(
                OpType.ALL_GATHER,
                agreed(input, null, 0),
                operation -> backend.allGather(operation, tensors, input));
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
        check(OpType.ALL_GATHER_INTO_TENSOR, "input", input);
        checkWhole(OpType.ALL_GATHER_INTO_TENSOR, "output", output, "input", input);
        return issue(
                OpType.ALL_GATHER_INTO_TENSOR,
                agreed(input, null, 0),
                operation -> backend.allGather(operation, List.of(output), input));
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
        checkReduce(OpType.REDUCE_SCATTER, output, op);
        checkList(OpType.REDUCE_SCATTER, "inputs", inputs, output);
        List<NDArray> tensors = List.copyOf(inputs);
        return issue(
                OpType.REDUCE_SCATTER,
                agreed(output, op, 0),
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
        checkReduce(OpType.REDUCE_SCATTER_TENSOR, output, op);
        checkWhole(OpType.REDUCE_SCATTER_TENSOR, "input", input, "output", output);
        return issue(
                OpType.REDUCE_SCATTER_TENSOR,
                agreed(output, op, 0),
                operation -> backend.reduceScatter(operation, output, List.of(input), op));
    }

    /**
     * Completes when all ranks have called it.
     *
     * @return the work
     */
    public Work barrier() {
        return issue(OpType.BARRIER, new Agreed(null, new long[0], null, 0), backend::barrier);
    }

    /**
     * Runs code as one operation of the group, in its turn among the others: the way for a library
     * to add operations that use {@link #p2pBuffers()}. The code must itself wait for the agreement
     * of all ranks ({@link P2pBuffers#awaitAgreement}) before it uses what they sent, and must not
     * issue operations on the group. If it throws anything but {@link CollectiveException}, the
     * group is broken.
     *
     * @param type the kind of operation
     * @param agreed what all ranks must agree on
     * @param body the code; runs once, on this thread or another
     * @return the work
     * @throws UnsupportedOperationException if the backend can not
     */
    public Work execute(OpType type, Agreed agreed, Consumer<Operation> body) {
        Objects.requireNonNull(body, "body");
        return issue(
                type,
                agreed,
                operation -> backend.execute(operation, () -> body.accept(operation)));
    }

    /**
     * Leaves the group: operations under way fail, everything the group holds is freed, and further
     * calls throw {@link IllegalStateException}. Idempotent.
     */
    public void destroy() {
        synchronized (issueLock) {
            if (destroyed) {
                return;
            }
            destroyed = true;
        }
        recorder.close();
        backend.close();
        onDestroy.run();
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
                + ", rank "
                + rank()
                + " of "
                + worldSize()
                + ", "
                + backendName()
                + ")";
    }

    private Work issue(OpType type, Agreed agreed, Function<Operation, Work> call) {
        synchronized (issueLock) {
            checkUsable();
            Operation operation =
                    new Operation(type, sequence + 1, name(), context.options().timeout(), agreed);
            recorder.scheduled(operation);
            try {
                Work work = call.apply(operation);
                sequence++;
                return work;
            } catch (RuntimeException | Error e) {
                recorder.withdrawn(operation);
                throw e;
            }
        }
    }

    private void checkUsable() {
        if (destroyed) {
            throw new IllegalStateException("the group '" + name() + "' has been destroyed");
        }
    }

    private static Agreed agreed(NDArray tensor, ReduceOp op, int index) {
        return new Agreed(Torch.scalarType(tensor), Torch.sizes(tensor), op, index);
    }

    private void check(OpType type, String role, NDArray tensor) {
        checkUsable();
        if (tensor == null) {
            throw new IllegalArgumentException(type + ": " + role + " is null");
        }
        backend.check(type, tensor, null);
    }

    private void checkReduce(OpType type, NDArray tensor, ReduceOp op) {
        check(type, "tensor", tensor);
        Objects.requireNonNull(op, "op");
        backend.check(type, tensor, op);
    }

    private void checkRank(String role, int rank) {
        if (rank < 0 || rank >= worldSize()) {
            throw new IllegalArgumentException(
                    role + " " + rank + " lies outside a group of " + worldSize() + " ranks");
        }
    }

    private void checkList(OpType type, String role, List<NDArray> tensors, NDArray like) {
        if (tensors == null || tensors.size() != worldSize()) {
            throw new IllegalArgumentException(
                    type
                            + ": "
                            + role
                            + " must hold one tensor for each of the "
                            + worldSize()
                            + " ranks, not "
                            + (tensors == null ? "null" : tensors.size()));
        }
        for (NDArray tensor : tensors) {
            check(type, role, tensor);
            checkSameType(type, role, tensor, like);
            if (!Arrays.equals(Torch.sizes(tensor), Torch.sizes(like))) {
                throw new IllegalArgumentException(
                        type
                                + ": the shapes of "
                                + role
                                + " must be "
                                + Arrays.toString(Torch.sizes(like))
                                + ", not "
                                + Arrays.toString(Torch.sizes(tensor)));
            }
        }
    }

    private void checkWhole(
            OpType type, String wholeRole, NDArray whole, String partRole, NDArray part) {
        check(type, wholeRole, whole);
        checkSameType(type, wholeRole, whole, part);
        if (count(whole) != worldSize() * count(part)) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: %s %s must have %d (the world size) times as many elements as %s"
                                    + " %s",
                            type,
                            wholeRole,
                            Arrays.toString(Torch.sizes(whole)),
                            worldSize(),
                            partRole,
                            Arrays.toString(Torch.sizes(part))));
        }
    }

    private static void checkSameType(OpType type, String role, NDArray tensor, NDArray like) {
        ScalarType actual = Torch.scalarType(tensor);
        ScalarType expected = Torch.scalarType(like);
        if (actual != expected) {
            throw new IllegalArgumentException(
                    type + ": " + role + " must be " + expected + ", not " + actual);
        }
    }

    private static long count(NDArray tensor) {
        return Arrays.stream(Torch.sizes(tensor)).reduce(1, Math::multiplyExact);
    }
}
