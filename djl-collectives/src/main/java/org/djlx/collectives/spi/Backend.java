/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.spi;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * What moves the data of a {@link ProcessGroup}, on one rank.
 *
 * <p>A backend implements what it can, and declares it; the rest throws {@link
 * UnsupportedOperationException}. The group has checked shapes, types and ranks before it calls.
 * Calls come one at a time, in the order in which the operations are to run, and must not wait for
 * other ranks: they return a {@link Work}. Tensors need not be contiguous. A backend keeps what it
 * needs of them alive until the work is completed.
 */
public abstract class Backend implements AutoCloseable {

    /** Constructor for subclasses. */
    protected Backend() {}

    /**
     * Returns the backend's name.
     *
     * @return the name
     */
    public abstract String name();

    /**
     * Declares what the backend supports.
     *
     * @return what its factory declares
     */
    public abstract Support support();

    /**
     * Returns where tensors must be.
     *
     * @return the device
     */
    public abstract Device device();

    /**
     * Checks that the backend can work on a tensor, and reduce it.
     *
     * @param type the kind of operation
     * @param tensor a tensor of this operation
     * @param element its element type
     * @param op the reduce op, or null if the operation does not reduce
     * @throws UnsupportedOperationException if the backend lacks the operation
     * @throws IllegalArgumentException if it cannot do it with this tensor, with what it can
     */
    public final void check(OpType type, NDArray tensor, ScalarType element, ReduceOp op) {
        checkSupported(type);
        Device actual = tensor.getDevice(); // Kept by the array, where Torch.device asks libtorch.
        if (!actual.equals(device())) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: backend '%s' works on tensors of %s, not of %s; copy it there"
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
                    type
                            + ": "
                            + op
                            + " is not defined for "
                            + element
                            + "; possible are "
                            + possible);
        }
        throw new IllegalArgumentException(
                String.format(
                        "%s: backend '%s' does not support %s%s; possible are %s",
                        type, name(), element, op == null ? "" : " with " + op, possible));
    }

    public final void checkSupported(OpType type) {
        if (!support().supports(type)) {
            throw unsupported(type);
        }
    }

    /**
     * See {@link ProcessGroup#allReduce}.
     *
     * @param operation the operation
     * @param tensor input and output
     * @param op how to reduce
     * @return the work
     */
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        throw unsupported(operation.type());
    }

    /**
     * As {@link #allReduce}, for a caller who lets its current stream wait for the work at once.
     *
     * @param operation the operation
     * @param tensor input and output
     * @param op how to reduce
     * @return the work
     */
    public Work allReduceInOrder(Operation operation, NDArray tensor, ReduceOp op) {
        return allReduce(operation, tensor, op);
    }

    /**
     * See {@link ProcessGroup#reduce}.
     *
     * @param operation the operation
     * @param tensor this rank's contribution; on the root, also where the result goes
     * @param root the rank that gets the result
     * @param op how to reduce
     * @return the work
     */
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#broadcast}.
     *
     * @param operation the operation
     * @param tensor input on the root, output elsewhere
     * @param root the rank that sends
     * @return the work
     */
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#allGather} and {@link ProcessGroup#allGatherIntoTensor}.
     *
     * @param operation the operation
     * @param outputs a tensor for each rank's input, or one for all
     * @param input this rank's input
     * @return the work
     */
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#gather}.
     *
     * @param operation the operation
     * @param outputs a tensor for each rank's input on the root, elsewhere none
     * @param input this rank's input
     * @param root the rank that gets them
     * @return the work
     */
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#scatter}.
     *
     * @param operation the operation
     * @param output where this rank's tensor goes
     * @param inputs a tensor for each rank on the root, elsewhere none
     * @param root the rank that sends them
     * @return the work
     */
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#reduceScatter} and {@link ProcessGroup#reduceScatterTensor}.
     *
     * @param operation the operation
     * @param output this rank's part of the result
     * @param inputs a tensor for each rank, or one for all
     * @param op how to reduce
     * @return the work
     */
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#allReduceCoalesced}. Only called unless the backend {@link
     * #batchesCollectives()}, as are the other coalesced operations.
     *
     * @param operation the operation, for all tensors
     * @param tensors inputs and outputs, of one element type
     * @param infos what is known of them, so that it need not be asked again
     * @param op how to reduce
     * @return the work
     */
    public Work allReduceCoalesced(
            Operation operation, List<NDArray> tensors, List<TensorInfo> infos, ReduceOp op) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#allGatherCoalesced}.
     *
     * @param operation the operation, for all tensors
     * @param outputs for each input, one for all ranks
     * @param inputs this rank's inputs, of one element type
     * @param infos what is known of the inputs
     * @return the work
     */
    public Work allGatherCoalesced(
            Operation operation,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#reduceScatterCoalesced}.
     *
     * @param operation the operation, for all tensors
     * @param outputs this rank's parts of the results, of one element type
     * @param inputs for each output, one for all ranks
     * @param infos what is known of the outputs
     * @param op how to reduce
     * @return the work
     */
    public Work reduceScatterCoalesced(
            Operation operation,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos,
            ReduceOp op) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#allToAll}.
     *
     * @param operation the operation
     * @param outputs where the tensor from each rank goes
     * @param inputs a tensor for each rank
     * @return the work
     */
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#allToAllSingle(NDArray, NDArray, long[], long[])}.
     *
     * @param operation the operation
     * @param output where the parts from all ranks go, one after the other
     * @param input the parts for all ranks, one after the other
     * @param outputCounts the number of elements from each rank
     * @param inputCounts the number of elements for each rank
     * @return the work
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
     * See {@link ProcessGroup#send}. Does not wait for collectives, nor they for it.
     *
     * @param operation the operation
     * @param tensor what to send
     * @param destination the rank to send it to, not this one
     * @param tag what tells messages of two ranks apart; negative tags are the group's own
     * @return the work
     */
    public Work send(Operation operation, NDArray tensor, int destination, int tag) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#recv} and {@link ProcessGroup#recvAnySource}.
     *
     * @param operation the operation
     * @param tensor where the message goes
     * @param source the rank to receive from, not this one; -1 for any
     * @param tag the message's tag
     * @return the work, which knows its {@link Work#sourceRank()}
     */
    public Work recv(Operation operation, NDArray tensor, int source, int tag) {
        throw unsupported(operation.type());
    }

    /**
     * Tells that the operations up to {@link #endBatch()} are to run at the same time: sends and
     * receives, and if the backend {@link #batchesCollectives()} also those.
     */
    public void startBatch() {}

    /** Ends what {@link #startBatch()} began; also called if issuing one of them failed. */
    public void endBatch() {}

    /**
     * Tells whether collectives in a batch run as one. If so, coalesced operations become batches,
     * with an operation for each tensor; if not, {@link #allReduceCoalesced}, {@link
     * #allGatherCoalesced} and {@link #reduceScatterCoalesced} get all tensors of an element type.
     *
     * @return whether they do; the same on all ranks
     */
    public boolean batchesCollectives() {
        return false;
    }

    /**
     * Creates the backend of a group of some of this group's ranks from what this one has. All
     * ranks of this group call it, as an operation, and may wait for each other.
     *
     * @param context the new group and this rank; null if this rank is not a member
     * @param color what tells groups apart that are made by the same call; not negative
     * @param members the new group's ranks, by their ranks here
     * @return the backend; empty if this rank is not a member, or if the new group's backend is to
     *     be created by the factory, which is then so on all ranks
     */
    public Optional<Backend> split(GroupContext context, int color, List<Integer> members) {
        return Optional.empty();
    }

    /**
     * See {@link ProcessGroup#barrier}.
     *
     * @param operation the operation
     * @return the work
     */
    public Work barrier(Operation operation) {
        throw unsupported(operation.type());
    }

    /**
     * See {@link ProcessGroup#execute}.
     *
     * @param operation the operation
     * @param body what to run in the operation's turn
     * @return the work
     */
    public Work execute(Operation operation, Runnable body) {
        throw unsupported(operation.type());
    }

    /**
     * Returns the group's symmetric memory.
     *
     * @return the buffers, or empty if the group has none, which is then so on all ranks
     */
    public Optional<P2pBuffers> p2pBuffers() {
        return Optional.empty();
    }

    /**
     * Makes calls end with an exception that wait for other ranks, now and from now on, as the
     * group is about to be closed. Any thread may call it. A backend whose calls wait for no other
     * rank need not do anything.
     */
    public void stopWaiting() {}

    /**
     * Tells the other ranks that this one calls nothing more: what they have called and it has not
     * will never end well. A backend that has no means to tell need not do anything.
     */
    public void endCalls() {}

    /**
     * Waits until the operations that were called have ended, each in its time. To be done by a
     * backend whose results may be in use although nobody has waited for them on the host: {@link
     * #close} would make them worthless. It returns early if the thread is interrupted, and throws
     * nothing. Called behind {@link #endCalls} and before {@link #close}.
     */
    public void drain() {}

    /** Ends operations under way with an exception and frees everything. Idempotent. */
    @Override
    public abstract void close();

    private UnsupportedOperationException unsupported(OpType type) {
        return new UnsupportedOperationException(
                "backend '" + name() + "' does not support " + type);
    }
}
