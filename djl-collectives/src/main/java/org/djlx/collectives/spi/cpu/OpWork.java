// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;

final class OpWork extends PendingWork {

    private final OpQueue queue;
    private final Runnable body;
    private final Runnable cleanup;

    OpWork(
            OpQueue queue,
            Operation operation,
            Runnable body,
            Runnable cleanup,
            List<NDArray> result) {
        super(operation, result);
        this.queue = queue;
        this.body = body;
        this.cleanup = cleanup;
    }

    /** Runs the operation; called by the queue, once. */
    void run() {
        try {
            body.run();
            end(null);
        } catch (RuntimeException | Error e) {
            end(GroupErrors.failed(operation(), e));
        }
    }

    /** Ends the operation, whether or not it ran; {@code reason} is null if it succeeded. */
    void end(CollectiveException reason) {
        CollectiveException outcome = reason;
        try {
            cleanup.run();
        } catch (RuntimeException | Error e) {
            // Freeing a tensor's memory may run the caller's code.
            if (outcome == null) {
                outcome =
                        new CollectiveException(operation() + " cannot free its tensors: " + e, e);
            } else {
                outcome.addSuppressed(e);
            }
        }
        complete(outcome);
    }

    @Override
    public void await() {
        if (!isCompleted() && !queue.runUntil(this)) {
            awaitFuture(Long.MAX_VALUE);
        }
        rethrow();
    }

    @Override
    void expedite() {
        queue.expedite();
    }
}
