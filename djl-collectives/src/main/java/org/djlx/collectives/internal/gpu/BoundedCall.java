// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.host.Durations;
import org.djlx.nativeops.host.LongCalls;

/** Runs calls that wait for other ranks and take no timeout, such as those of NCCL. */
public final class BoundedCall {

    private static final long POLL_MILLIS = 50; // between checks for an obstacle

    private BoundedCall() {}

    /**
     * Runs a call on a new thread, and waits for it.
     *
     * @param name the call in progress, such as "splitting group 'g'"
     * @param timeout how long to wait; after it, the thread is interrupted and abandoned
     * @param obstacle returns the reason why the call cannot succeed, if one is known
     * @throws CollectiveTimeoutException if the call has not returned in time
     * @throws CollectiveException if the call failed, or cannot succeed
     */
    public static <T> T run(
            String name, Duration timeout, Supplier<Optional<String>> obstacle, Supplier<T> call) {
        CompletableFuture<T> future = new CompletableFuture<>();
        Thread thread =
                LongCalls.start(
                        "nccl: " + name,
                        () -> {
                            try {
                                future.complete(call.get());
                            } catch (RuntimeException | Error e) {
                                future.completeExceptionally(e);
                            }
                        });
        Deadline deadline = Deadline.after(timeout);
        try {
            while (!isDone(future)) {
                Optional<String> reason = obstacle.get();
                if (reason.isPresent()) {
                    thread.interrupt();
                    throw new CollectiveException(name + " failed: " + reason.get());
                }
                if (deadline.isOver()) {
                    thread.interrupt();
                    throw new CollectiveTimeoutException(
                            name + " timed out after " + Durations.text(timeout), List.of());
                }
            }
            return future.get();
        } catch (ExecutionException e) {
            throw GroupErrors.failed(name, e.getCause());
        } catch (InterruptedException e) {
            thread.interrupt();
            throw GroupErrors.interrupted("the end of " + name, e);
        }
    }

    /** Waits for the next poll, or the result. */
    private static boolean isDone(CompletableFuture<?> future) throws InterruptedException {
        try {
            future.get(POLL_MILLIS, TimeUnit.MILLISECONDS);
            return true;
        } catch (ExecutionException e) {
            return true;
        } catch (TimeoutException e) {
            return false;
        }
    }
}
