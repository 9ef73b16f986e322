// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.internal.group.RankGroup;
import org.djlx.collectives.internal.host.FailureNote;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A rank that cannot make a call breaks the group: other ranks do not wait for their timeout. */
@Timeout(60)
class AbortTest {

    private static final EngineException NO_MEMORY = new EngineException("CUDA out of memory");

    /** Cannot enqueue anything, as if memory had run out. */
    private static final class Full extends Backend {

        private final AtomicReference<CollectiveException> aborted = new AtomicReference<>();
        private RuntimeException thrown = NO_MEMORY;

        @Override
        public String name() {
            return "full";
        }

        @Override
        public Support support() {
            return Support.builder().addPlain(OpType.BARRIER).build();
        }

        @Override
        public Device device() {
            return Device.cpu();
        }

        @Override
        public Work barrier(Operation operation) {
            throw thrown;
        }

        @Override
        public void abort(CollectiveException reason) {
            aborted.set(reason);
        }

        @Override
        public void close() {}
    }

    @Test
    void outOfMemoryBreaksTheGroupWrongArgumentDoesNot() {
        Full full = new Full();
        BackendOptions options = new BackendOptions(Duration.ofMinutes(1));
        GroupContext context = new GroupContext("g", 0, 1, new HashStore(), options, null);
        ProcessGroup group =
                new RankGroup(context, full, "job", List.of(0), Optional.empty(), () -> {});
        try {
            full.thrown = new IllegalArgumentException("wrong");
            assertThrows(IllegalArgumentException.class, group::barrier);
            assertEquals(null, full.aborted.get());
            full.thrown = NO_MEMORY;
            assertSame(NO_MEMORY, assertThrows(EngineException.class, group::barrier));
            CollectiveException reason = full.aborted.get();
            assertSame(NO_MEMORY, reason.getCause());
            assertTrue(reason.getMessage().startsWith("barrier() #1 of "), reason.getMessage());
        } finally {
            group.destroy();
        }
    }

    /** Reading the ranks' states must not race with the unmapping of their memory. */
    @Test
    void failureIsPolledWhileGroupsAreDestroyed() throws Exception {
        for (int cycle = 0; cycle < 100; cycle++) {
            List<ProcessGroup> groups = ProcessGroups.local("shm", 2, ShmOptions.builder().build());
            List<FutureTask<Optional<CollectiveException>>> pollers =
                    groups.stream()
                            .flatMap(group -> Stream.of(group, group, group))
                            .map(group -> new FutureTask<>(() -> poll(group)))
                            .toList();
            pollers.forEach(task -> new Thread(task).start());
            groups.forEach(ProcessGroup::destroy);
            for (FutureTask<Optional<CollectiveException>> poller : pollers) {
                assertEquals(Optional.empty(), poller.get());
            }
        }
    }

    /** Returns the failure of a group, unless it is destroyed before it has one. */
    private static Optional<CollectiveException> poll(ProcessGroup group) {
        try {
            Optional<CollectiveException> failure = group.failure();
            while (failure.isEmpty()) {
                failure = group.failure();
            }
            return failure;
        } catch (IllegalStateException e) {
            return Optional.empty();
        }
    }

    /** The timeout of the group is half an hour. */
    @Test
    void otherRanksFailWithTheCause() {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 3, ShmOptions.builder().build());
        try {
            CollectiveException e =
                    assertThrows(
                            CollectiveException.class,
                            () -> ProcessGroups.run(groups, AbortTest::abortOnRank1));
            for (Throwable each : e.getSuppressed()) {
                assertTrue(each.getMessage().contains("CUDA out of memory"), each.getMessage());
            }
            assertEquals(2, e.getSuppressed().length);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static Void abortOnRank1(ProcessGroup group) {
        if (group.rank() == 1) {
            group.abort(NO_MEMORY);
            group.abort(new EngineException("a second reason is ignored"));
        }
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray one = manager.ones(new Shape(1));
            group.allReduce(one, ReduceOp.SUM).await();
        }
        return null;
    }

    @Test
    void abortReasonReachesOtherRanksThroughTheStore() throws InterruptedException {
        Store store = new HashStore();
        FailureNote first = new FailureNote(store, "failure", 2);
        FailureNote second = new FailureNote(store, "failure", 2);
        assertReaches("rank 0 failed: out of memory", first, second);
    }

    @Test
    void abortReasonReachesRanksThatHaveNotMet() throws InterruptedException {
        Store store = new HashStore();
        BackendOptions options = ShmOptions.builder().build();
        List<FailureNote> notes =
                IntStream.range(0, 2)
                        .mapToObj(rank -> new GroupContext("g", rank, 2, store, options, null))
                        .map(context -> FailureNote.ofExchanges(context, List.of("first", "next")))
                        .toList();
        assertReaches("rank 0 failed: out of memory", notes.get(0), notes.get(1));
        GroupContext late = new GroupContext("g", 1, 2, store, options, null);
        for (String key : List.of("first", "next")) {
            String message =
                    assertThrows(CollectiveException.class, () -> late.exchange(key, new byte[0]))
                            .getMessage();
            assertTrue(message.contains("rank 0 failed: out of memory"), message);
        }
    }

    private static void assertReaches(String text, FailureNote first, FailureNote second)
            throws InterruptedException {
        assertEquals(Optional.empty(), second.failure());
        first.publish(0, new CollectiveException("out of memory"));
        first.publish(0, new CollectiveException("a second reason is ignored"));
        long start = System.nanoTime();
        while (second.failure().isEmpty()) {
            Thread.sleep(5);
            assertTrue(System.nanoTime() - start < 10_000_000_000L);
        }
        assertEquals(Optional.of(text), second.failure());
    }
}
