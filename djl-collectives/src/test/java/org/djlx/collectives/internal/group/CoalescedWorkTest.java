// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.Work;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class CoalescedWorkTest {

    /** An operation that ended, or a wait that did. */
    private record Failed(
            CollectiveException reason,
            boolean isCompleted,
            CompletionStage<List<NDArray>> getFuture)
            implements Work {

        @Override
        public Optional<Throwable> exception() {
            return isCompleted ? Optional.of(reason) : Optional.empty();
        }

        @Override
        public void await() {
            throw reason;
        }

        @Override
        public void await(Duration timeout) {
            throw reason;
        }

        @Override
        public List<NDArray> result() {
            return List.of();
        }
    }

    /** The operation has ended, but its thread has not completed the coalesced work yet. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void awaitAfterTheFailureThrowsIt(boolean withTimeout) {
        CollectiveException reason = new CollectiveException("on purpose");
        CompletableFuture<List<NDArray>> future = new CompletableFuture<>();
        CompletableFuture.delayedExecutor(200, TimeUnit.MILLISECONDS)
                .execute(() -> future.completeExceptionally(reason));
        Work work = new CoalescedWork(List.of(new Failed(reason, true, future)), List.of());
        Consumer<Work> await = withTimeout ? w -> w.await(Duration.ofMinutes(1)) : Work::await;
        assertSame(reason, assertThrows(CollectiveException.class, () -> await.accept(work)));
        assertTrue(work.isCompleted());
        assertEquals(Optional.of(reason), work.exception());
    }

    @Test
    void aWaitThatIsInterruptedLeavesTheOperationRunning() {
        CollectiveException reason = new CollectiveException("interrupted");
        Work underWay = new Failed(reason, false, new CompletableFuture<>());
        Work work = new CoalescedWork(List.of(underWay), List.of());
        assertSame(reason, assertThrows(CollectiveException.class, work::await));
        assertFalse(work.isCompleted());
    }

    /** As on GPUs, where the stream waits unless options say that the host is to. */
    @Test
    void streamWaitDoesNotBlockTheHost() {
        Work underWay =
                new Work() {
                    @Override
                    public boolean isCompleted() {
                        return false;
                    }

                    @Override
                    public Optional<Throwable> exception() {
                        return Optional.empty();
                    }

                    @Override
                    public void await() {}

                    @Override
                    public void await(Duration timeout) {
                        throw new AssertionError();
                    }

                    @Override
                    public List<NDArray> result() {
                        return List.of();
                    }

                    @Override
                    public CompletionStage<List<NDArray>> getFuture() {
                        return new CompletableFuture<>();
                    }
                };
        Work work = new CoalescedWork(List.of(underWay), List.of());
        assertTimeoutPreemptively(Duration.ofSeconds(30), () -> work.await());
        assertFalse(work.isCompleted());
        CollectiveException reason = new CollectiveException("on purpose");
        Work failed = new Failed(reason, true, CompletableFuture.failedFuture(reason));
        Work failing = new CoalescedWork(List.of(failed, failed), List.of());
        assertSame(reason, assertThrows(CollectiveException.class, failing::await));
    }
}
