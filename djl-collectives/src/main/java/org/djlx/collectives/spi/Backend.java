// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * Moves the data of a {@link org.djlx.collectives.ProcessGroup} on one rank.
 *
 * <ul>
 *   <li>A backend overrides the operations that it supports and declares them in {@link #support}.
 *       The others throw {@link UnsupportedOperationException}.
 *   <li>The group checks shapes, types and ranks before it calls the backend.
 *   <li>Calls come one at a time, in the order in which the operations must run. They return a
 *       {@link Work} and must not wait for other ranks.
 *   <li>Tensors need not be contiguous.
 *   <li>The backend keeps the memory of the tensors alive until the work has completed.
 * </ul>
 */
public abstract class Backend implements AutoCloseable {

    /** Constructor for subclasses. */
    protected Backend() {}

    /** {@return the backend's name} */
    public abstract String name();

    /**
     * {@return the operations, element types and reductions that the backend supports: {@link
     * BackendFactory#support}}
     */
    public abstract Support support();

    /** {@return the device on which tensors must be} */
    public abstract Device device();

    /**
     * Checks that the backend supports an operation on a tensor.
     *
     * @param op the reduction, or null if the operation does not reduce
     * @throws UnsupportedOperationException if the backend does not have the operation
     * @throws IllegalArgumentException if the tensor's device, element type or reduction is not
     *     supported; the message lists the supported values
     */
    public final void check(OpType type, NDArray tensor, ScalarType element, ReduceOp op) {
        checkSupported(type);
        Device actual = tensor.getDevice(); // Cached by the array; Torch.device calls libtorch.
        if (!actual.equals(device())) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: backend '%s' needs tensors on %s, but this one is on %s; copy it"
                                    + " first",
                            type, name(), device(), actual));
        }
        if (support().supports(type, element, op)) {
            return;
        }
        Set<ScalarType> possible =
                new TreeSet<>(support().types(type, op == null ? null : op.kind()));
        if (op != null && !op.isDefinedFor(element)) {
            throw new IllegalArgumentException(
                    "%s: %s is not defined for %s; supported types: %s"
                            .formatted(type, op, element, possible));
        }
        throw new IllegalArgumentException(
                String.format(
                        "%s: backend '%s' does not support %s%s; supported types: %s",
                        type, name(), element, op == null ? "" : " with " + op, possible));
    }

    /** Throws UnsupportedOperationException unless the backend has an operation. */
    public final void checkSupported(OpType type) {
        if (!support().supports(type)) {
            throw unsupported(type);
        }
    }

    /**
     * Checks that the caller may wait for an operation, which is {@linkplain Operation#isInOrder in
     * order}, immediately; throws IllegalStateException if it would not start before the wait.
     */
    public void checkInOrder(Operation operation) {}

    /** See {@code ProcessGroup.allReduce}. */
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        throw unsupported(operation.type());
    }

    /** See {@code ProcessGroup.reduce}. */
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        throw unsupported(operation.type());
    }

    /** See {@code ProcessGroup.broadcast}. */
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        throw unsupported(operation.type());
    }

    /**
     * See {@code ProcessGroup.allGather} and {@code ProcessGroup.allGatherIntoTensor}: one output
     * per rank, or one for all.
     */
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        throw unsupported(operation.type());
    }

    /** See {@code ProcessGroup.gather}: on the root one output per rank; none on other ranks. */
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        throw unsupported(operation.type());
    }

    /** See {@code ProcessGroup.scatter}: on the root one input per rank; none on other ranks. */
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        throw unsupported(operation.type());
    }

    /**
     * See {@code ProcessGroup.reduceScatter} and {@code ProcessGroup.reduceScatterTensor}: one
     * input per rank, or one for all.
     */
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        throw unsupported(operation.type());
    }

    /**
     * See {@code ProcessGroup.allReduceCoalesced}, for tensors of one element type and their types,
     * shapes and addresses. Coalesced operations are called only if {@link #batchesCollectives()}
     * is false.
     */
    public Work allReduceCoalesced(
            Operation operation, List<NDArray> tensors, List<TensorInfo> infos, ReduceOp op) {
        throw unsupported(operation.type());
    }

    /**
     * See {@code ProcessGroup.allGatherCoalesced}, for inputs of one element type and their types,
     * shapes and addresses.
     */
    public Work allGatherCoalesced(
            Operation operation,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos) {
        throw unsupported(operation.type());
    }

    /**
     * See {@code ProcessGroup.reduceScatterCoalesced}, for outputs of one element type and their
     * types, shapes and addresses.
     */
    public Work reduceScatterCoalesced(
            Operation operation,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos,
            ReduceOp op) {
        throw unsupported(operation.type());
    }

    /** See {@code ProcessGroup.allToAll}. */
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        throw unsupported(operation.type());
    }

    /**
     * See {@code ProcessGroup.allToAllSingle}, for the numbers of elements from and for each rank.
     */
    public Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        throw unsupported(operation.type());
    }

    /**
     * See {@code ProcessGroup.send}. Negative tags are group-internal; their messages must not wait
     * for collectives. A backend may run other messages in one order with collectives, as NCCL
     * does, and then documents it.
     */
    public Work send(Operation operation, NDArray tensor, int destination, int tag) {
        throw unsupported(operation.type());
    }

    /**
     * See {@code ProcessGroup.recv} and {@code ProcessGroup.recvAnySource}, where the source is -1.
     * The work implements {@link Work#sourceRank()}.
     */
    public Work recv(Operation operation, NDArray tensor, int source, int tag) {
        throw unsupported(operation.type());
    }

    /**
     * Starts a batch: sends and receives that run concurrently, or the collectives of a coalesced
     * call.
     */
    public void startBatch() {}

    /** Ends a batch; also called if issuing an operation of the batch failed. */
    public void endBatch() {}

    /**
     * {@return whether a coalesced call becomes a batch with one operation per tensor, such as
     * {@link #allReduce}; true unless the backend overrides the coalesced operations} If false, the
     * coalesced call becomes one call of {@link #allReduceCoalesced}, {@link #allGatherCoalesced}
     * or {@link #reduceScatterCoalesced} per element type. The same on all ranks.
     */
    public boolean batchesCollectives() {
        return true;
    }

    /**
     * Creates the backend of a sub-group from this backend's resources. All ranks of this group
     * call it in the same order and may wait for each other.
     *
     * @param context the new group and this rank; null if this rank is not a member
     * @param color distinguishes the groups created by one call; not negative
     * @param members the new group's ranks, by rank in this group
     * @return the backend; empty if this rank is not a member, or, on all ranks, if the factory
     *     must create the backend
     */
    public Optional<Backend> split(GroupContext context, int color, List<Integer> members) {
        return Optional.empty();
    }

    /** See {@code ProcessGroup.barrier}. */
    public Work barrier(Operation operation) {
        throw unsupported(operation.type());
    }

    /** See {@code ProcessGroup.execute}. */
    public Work execute(Operation operation, Consumer<Operation> body) {
        throw unsupported(operation.type());
    }

    /**
     * Fails current and later calls that wait for other ranks, before the group is closed. Any
     * thread may call it. A no-op if the backend's calls never wait for other ranks.
     */
    public void stopWaiting() {}

    /**
     * Announces to the other ranks that this rank makes no more calls. Operations that this rank
     * has not called then fail on the other ranks. No-op for backends that cannot announce a
     * failure.
     */
    public void endCalls() {}

    /**
     * Breaks the group: running operations and later calls fail with the reason, and as soon as
     * possible those of the other ranks. Any thread may call it. No-op for backends that cannot
     * announce a failure.
     */
    public void abort(CollectiveException reason) {}

    /** {@return why the group is broken; empty if it is usable, or the backend never breaks it} */
    public Optional<CollectiveException> failure() {
        return Optional.empty();
    }

    /**
     * Waits until all running operations have ended, each within its timeout. Needed if a stream
     * may use results without a host thread that waits for them: {@link #close} would invalidate
     * the results. Returns early if the thread is interrupted; never throws. Called after {@link
     * #endCalls} and before {@link #close}.
     */
    public void drain() {}

    /** Fails running operations and frees all resources. Idempotent. */
    @Override
    public abstract void close();

    private UnsupportedOperationException unsupported(OpType type) {
        return new UnsupportedOperationException(
                "backend '" + name() + "' does not support " + type);
    }
}
