// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.util.List;
import java.util.Optional;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;

/**
 * The link of a {@link StreamQueue} to the other ranks, such as a communicator of NCCL. Kernels on
 * the queue do not use it.
 */
public interface Connection {

    /**
     * Connects with the other ranks; no-op if connected. All ranks call this, and it waits for
     * them. Returns whether this call has connected.
     */
    boolean connect();

    /**
     * Returns whether operations can be launched together without waiting for other ranks. Counts
     * them as launched. The queue calls this under its lock.
     */
    boolean isReady(List<QueuedWork> unit);

    /**
     * Returns whether an operation of this connection must be {@linkplain #startVerification
     * verified} before it is launched.
     */
    boolean isToBeVerified(QueuedWork work);

    /**
     * Publishes an operation to the other ranks.
     *
     * @return a task that waits for the other ranks and compares their calls with the operation; it
     *     throws a {@link CollectiveMismatchException} on all ranks if they do not match
     */
    Runnable startVerification(QueuedWork work);

    /**
     * Launches operations of one or more queues together; operations of one queue may run in any
     * order.
     */
    void launchTogether(Runnable launches);

    Optional<String> error();

    /** Returns advice for the message of an operation that timed out: the end of a sentence. */
    String hint();

    /**
     * Prepares for {@link #abort}: the works of the queue have failed for a reason, and are about
     * to be aborted.
     */
    void aborting(CollectiveException reason);

    /** Ends all running operations and all waiting calls; no-op if not connected. */
    void abort();

    /** Disconnects after all operations have ended; no-op if not connected. */
    void close();
}
