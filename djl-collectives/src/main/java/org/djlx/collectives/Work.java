// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletionStage;

/**
 * An operation issued on a {@link ProcessGroup}; the counterpart of {@code torch.distributed.Work}.
 *
 * <pre>{@code
 * Work work = group.allReduce(gradient, ReduceOp.SUM);
 * computeSomethingElse();
 * work.await(); // the gradient now holds the sum
 * }</pre>
 *
 * <ul>
 *   <li>The operation runs whether or not a thread waits for it, and keeps its tensors and its
 *       group alive.
 *   <li>Until it has completed, do not read or write its tensors. You may close them. If a tensor
 *       is a slice or a reshape of another array, do not close that array.
 *   <li>All methods are thread-safe.
 * </ul>
 */
public interface Work {

    /** {@return whether the operation has ended, successfully or not} */
    boolean isCompleted();

    /** {@return whether the operation has ended successfully} */
    default boolean isSuccess() {
        return isCompleted() && exception().isEmpty();
    }

    /**
     * {@return why the operation failed; empty while the operation is running and after it has
     * succeeded}
     */
    Optional<Throwable> exception();

    /**
     * {@return the operation's number within its group, from 1 and the same on all ranks} Messages
     * between two ranks are counted on their own, on each rank. 0 if the backend does not tell.
     */
    default long sequence() {
        return 0;
    }

    /**
     * {@return how long the operation ran; empty until it has ended, if it was recorded in a CUDA
     * graph, or if the backend does not tell} From the start of its work, or on a GPU from when the
     * host enqueued it, until the host noticed its end: on a GPU up to a millisecond later, if no
     * thread waits for the work. Measure GPU work with CUDA events.
     */
    default Optional<Duration> duration() {
        return Optional.empty();
    }

    /**
     * Blocks until the operation has ended, at most for the timeout of its group.
     *
     * <ul>
     *   <li>On a GPU with {@link NcclOptions.Builder#optBlockingWait optBlockingWait(false)},
     *       c10d's default, only the current stream waits, as with {@link #blockCurrentStream()}.
     *   <li>On the CPU the calling thread may run the operation itself. An interrupt then fails the
     *       operation and breaks the group on all ranks. A rank that joins the operation later may
     *       still get its result; its next operation fails.
     * </ul>
     *
     * @throws CollectiveException if the operation failed; on a GPU only if the failure is already
     *     known
     */
    void await();

    /**
     * Blocks until the operation has ended, at most for a given time.
     *
     * @param timeout how long to wait; the operation continues to run when it expires
     * @throws CollectiveTimeoutException if the operation has not ended by then
     * @throws CollectiveException if the operation failed
     */
    void await(Duration timeout);

    /**
     * Makes the calling thread's current stream wait for the operation, without blocking the
     * thread. Work enqueued on that stream afterwards sees the result. On the CPU it is a no-op;
     * use {@link #await()} there.
     */
    default void blockCurrentStream() {}

    /**
     * {@return the rank within the group that sent a received message}
     *
     * @throws IllegalStateException if this is not a receive, or it has not succeeded yet
     */
    default int sourceRank() {
        throw new IllegalStateException(this + " has not received a message");
    }

    /**
     * {@return the operation's output tensors: the caller's own arrays, not copies} They hold the
     * result once the operation has completed.
     */
    List<NDArray> result();

    /**
     * Returns a stage for asynchronous composition. It fails with the operation's exception.
     * Dependent actions must not block, because they may run on the thread that executes the
     * group's operations.
     *
     * @return a stage that completes with {@link #result()}
     */
    CompletionStage<List<NDArray>> getFuture();
}
