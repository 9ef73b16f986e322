/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import java.util.List;
import java.util.Optional;

/**
 * What moves the data of a {@link ProcessGroup}, on one rank.
 *
 * <p>A backend implements what it can; the rest throws {@link UnsupportedOperationException}. The
 * group has checked shapes, types and ranks before it calls. Calls come one at a time, in the order
 * in which the operations are to run, and must not wait for other ranks: they return a {@link
 * Work}. Tensors need not be contiguous. A backend keeps what it needs of them alive until the work
 * is completed.
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
     * Checks that the backend can work on a tensor, and reduce it.
     *
     * @param type the kind of operation
     * @param tensor a tensor of this operation
     * @param op the reduce op, or null if the operation does not reduce
     * @throws IllegalArgumentException if it can not, with what it can
     */
    public abstract void check(OpType type, NDArray tensor, ReduceOp op);

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

    /** Ends operations under way with an exception and frees everything. Idempotent. */
    @Override
    public abstract void close();

    private UnsupportedOperationException unsupported(OpType type) {
        return new UnsupportedOperationException(
                "backend '" + name() + "' does not support " + type);
    }
}
