/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletionStage;

/**
 * An operation that was issued on a {@link ProcessGroup}; the counterpart of {@code
 * torch.distributed.Work}.
 *
 * <p>The operation goes on by itself, whether or not somebody waits for it. Until it is completed
 * its tensors must not be read or written; they may be closed, but not what they are slices or
 * reshapes of. All methods are thread-safe.
 */
public interface Work {

    /**
     * Tells whether the operation has ended, well or not.
     *
     * @return true if it has
     */
    boolean isCompleted();

    /**
     * Tells whether the operation has ended well.
     *
     * @return true if it has
     */
    default boolean isSuccess() {
        return isCompleted() && exception().isEmpty();
    }

    /**
     * Returns why the operation failed.
     *
     * @return the reason; empty while the operation is under way and if it ended well
     */
    Optional<Throwable> exception();

    /**
     * Waits until the operation has ended; the group's timeout bounds the wait. On GPUs it is the
     * current stream that waits ({@link #blockCurrentStream()}) and not the host, as by default in
     * c10d, if the options say so ({@link NcclOptions.Builder#optBlockingWait}).
     *
     * <p>On the CPU the waiting thread may run the operation itself. If it is interrupted then, the
     * operation fails and the group is broken, on all ranks: a rank that takes part too late to be
     * waited for may get its result, and fails with the next operation.
     *
     * @throws CollectiveException if the operation failed; on GPUs, if that is known already
     */
    void await();

    /**
     * Waits until the operation has ended.
     *
     * @param timeout how long to wait; when it expires the operation goes on
     * @throws CollectiveTimeoutException if the operation is still under way then
     * @throws CollectiveException if the operation failed
     */
    void await(Duration timeout);

    /**
     * Makes what the calling thread queues on its current stream from now on wait for the
     * operation, without blocking the thread. On the CPU, where there are no streams, it does
     * nothing: {@link #await()}.
     */
    default void blockCurrentStream() {}

    /**
     * Returns where a message came from.
     *
     * @return the rank of the group that sent it
     * @throws IllegalStateException unless this is a receive that has ended well
     */
    default int sourceRank() {
        throw new IllegalStateException(this + " has not received a message");
    }

    /**
     * Returns the operation's output tensors, which are the caller's own arrays.
     *
     * @return the arrays
     */
    List<NDArray> result();

    /**
     * Returns a view on the operation for asynchronous composition. It fails with the operation's
     * exception. Dependent actions must not block: they may run on the thread that executes the
     * group's operations.
     *
     * @return a stage that completes with {@link #result()}
     */
    CompletionStage<List<NDArray>> getFuture();
}
