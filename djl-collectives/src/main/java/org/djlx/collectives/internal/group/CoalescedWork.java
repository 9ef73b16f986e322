// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.nativeops.host.Deadline;

final class CoalescedWork implements Work {

    private final List<Work> works;
    private final List<NDArray> result;
    private final CompletableFuture<List<NDArray>> future;

    CoalescedWork(List<Work> works, List<NDArray> result) {
        this.works = List.copyOf(works);
        this.result = result;
        CompletableFuture<?>[] ends =
                works.stream()
                        .map(work -> work.getFuture().toCompletableFuture())
                        .toArray(CompletableFuture<?>[]::new);
        future = CompletableFuture.allOf(ends).thenApply(nothing -> result);
    }

    /** Returns the number of the first operation. */
    @Override
    public long sequence() {
        return works.get(0).sequence();
    }

    /** Returns the sum of the operations' times. */
    @Override
    public Optional<Duration> duration() {
        return works.stream()
                .map(Work::duration)
                .reduce((a, b) -> a.flatMap(time -> b.map(time::plus)))
                .orElseThrow();
    }

    @Override
    public boolean isCompleted() {
        return future.isDone();
    }

    @Override
    public Optional<Throwable> exception() {
        if (!future.isCompletedExceptionally()) {
            return Optional.empty();
        }
        try {
            future.join();
            return Optional.empty();
        } catch (CompletionException e) {
            return Optional.of(e.getCause());
        }
    }

    @Override
    public void await() {
        // Wait in the order in which the operations run, for all of them even if one fails.
        works.forEach(work -> await(work, work::await));
        if (isOnStream()) {
            return;
        }
        try {
            future.join();
        } catch (CompletionException e) {
            throw failure(e.getCause());
        }
    }

    /**
     * Returns whether only the stream waits: no operation has failed, and some still run on the
     * GPU.
     */
    private boolean isOnStream() {
        boolean waits = false;
        for (Work work : works) {
            if (work.exception().isPresent()) {
                return false;
            }
            waits |= !work.isCompleted();
        }
        return waits;
    }

    @Override
    public void await(Duration timeout) {
        Deadline deadline = Deadline.after(timeout);
        for (Work work : works) {
            Duration left = Duration.ofNanos(deadline.remainingNanos());
            await(work, () -> work.await(left));
        }
        try {
            future.get(deadline.remainingNanos(), TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            throw GroupErrors.interrupted(this, e);
        } catch (ExecutionException e) {
            throw failure(e.getCause());
        } catch (TimeoutException e) {
            throw GroupErrors.stillUnderWay(this, timeout);
        }
    }

    /** Waits; throws only if the wait itself failed. {@link #future} reports failed operations. */
    private static void await(Work work, Runnable wait) {
        try {
            wait.run();
        } catch (CollectiveException e) {
            if (!work.isCompleted()) {
                throw e;
            }
        }
    }

    private static CollectiveException failure(Throwable cause) {
        return cause instanceof CollectiveException e
                ? e
                : new CollectiveException("a coalesced operation failed: " + cause, cause);
    }

    @Override
    public void blockCurrentStream() {
        works.forEach(Work::blockCurrentStream);
    }

    @Override
    public List<NDArray> result() {
        return result;
    }

    @Override
    public CompletionStage<List<NDArray>> getFuture() {
        return future.minimalCompletionStage();
    }

    @Override
    public String toString() {
        return works.toString();
    }
}
