// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestOperations;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The hosts of three ranks, as threads. */
@Timeout(60)
class HostSyncTest {

    private static final int RANKS = 3;
    // The common pool may have a single one.
    private static final Executor THREADS = task -> new Thread(task).start();

    private final HashStore store = new HashStore();
    private final List<GroupContext> contexts =
            IntStream.range(0, RANKS)
                    .mapToObj(
                            rank ->
                                    new GroupContext(
                                            "hosts",
                                            rank,
                                            RANKS,
                                            store,
                                            new BackendOptions(Duration.ofSeconds(30)),
                                            null))
                    .toList();
    private final List<HostSync> hosts =
            contexts.stream()
                    .map(
                            context ->
                                    CompletableFuture.supplyAsync(
                                            () -> HostSync.join(context), THREADS))
                    .toList()
                    .stream()
                    .map(CompletableFuture::join)
                    .toList();
    private final Operation operation = contexts.get(0).joining();

    @AfterEach
    void close() {
        hosts.forEach(HostSync::close);
        store.close();
    }

    @Test
    void agreeReturnsAfterAllRanksHaveArrived() {
        AtomicInteger arrived = new AtomicInteger();
        List<CompletableFuture<Void>> ranks =
                hosts.stream()
                        .map(
                                host ->
                                        CompletableFuture.runAsync(
                                                () -> {
                                                    for (int i = 1; i <= 1000; i++) {
                                                        arrived.incrementAndGet();
                                                        host.agree(operation, false);
                                                        int all = arrived.get();
                                                        assertTrue(all >= i * RANKS, "" + all);
                                                    }
                                                },
                                                THREADS))
                        .toList();
        ranks.forEach(CompletableFuture::join);
        assertEquals(1000 * RANKS, arrived.get());
    }

    @Test
    void departedRankDoesNotBreakTheGroup() {
        assertFalse(hosts.get(0).isAlone());
        hosts.get(1).leave();
        assertFalse(hosts.get(0).isAlone());
        assertNull(hosts.get(0).brokenRank());
        // Nor is one that has failed gone before it leaves.
        hosts.get(2).fail("a lost GPU");
        assertFalse(hosts.get(0).isAlone());
        assertEquals("rank 2 failed: a lost GPU", hosts.get(0).brokenRank());
        hosts.get(2).leave();
        assertTrue(hosts.get(0).isAlone());
        assertFalse(hosts.get(1).isAlone());
    }

    /** Eight ranks that all call something else, in a group with a long name. */
    @Test
    void otherRanksReadTheWholeFailure() {
        long[] shape = new long[10];
        Arrays.fill(shape, Long.MAX_VALUE);
        Map<Integer, long[]> calls = new HashMap<>();
        for (int rank = 0; rank < 8; rank++) {
            Agreed agreed =
                    new Agreed(
                            ScalarType.COMPLEX128,
                            shape,
                            ReduceOp.premulSum(-Double.MAX_VALUE / 3),
                            Integer.MAX_VALUE - rank);
            calls.put(rank, words(OpType.REDUCE_SCATTER_TENSOR, agreed, false));
        }
        String name = "ö".repeat(200);
        String reason = GroupErrors.outOfStep("call 2147483647", name, calls).getMessage();
        hosts.get(2).fail(reason);
        assertEquals("rank 2 failed: " + reason, hosts.get(0).brokenRank());
    }

    private static long[] words(OpType type, Agreed agreed, boolean captured) {
        Operation call = TestOperations.create(type, 1, "", Duration.ZERO, agreed);
        long[] words = new long[CallWords.COUNT];
        CallWords.put(words, call.signature(), captured);
        return words;
    }

    /** The hint about graphs appears only if ranks differ in it. */
    @Test
    void mismatchHintsAtGraphsIfOnlySomeRanksRecord() {
        for (boolean both : new boolean[] {true, false}) {
            Map<Integer, long[]> calls = new HashMap<>();
            for (int rank = 0; rank < 2; rank++) {
                Agreed agreed =
                        new Agreed(ScalarType.FLOAT32, new long[] {10 + rank}, ReduceOp.SUM, 0);
                calls.put(rank, words(OpType.ALL_REDUCE, agreed, both || rank == 0));
            }
            String reason = GroupErrors.outOfStep("call 1", "hosts", calls).getMessage();
            assertTrue(reason.contains("(10), SUM) into a graph"), reason);
            assertEquals(!both, reason.endsWith("all into a graph or none"), reason);
        }
    }

    @Test
    void longFailureLosesItsMiddle() {
        String start = "barrier() #1 of group '";
        String end = "' timed out on rank 1 after 5 s: rank 2 did not arrive";
        for (int odd = 0; odd < 4; odd++) {
            byte[] cut = ControlBlock.encoded(start + "x".repeat(odd) + "𝄞".repeat(5000) + end);
            String text = new String(cut, StandardCharsets.UTF_8);
            assertTrue(text.startsWith(start), text);
            assertTrue(text.endsWith(end), text);
            assertTrue(text.contains("𝄞 … 𝄞"), text);
            assertFalse(text.contains("\ufffd"), text);
        }
    }

    /** A rank that has destroyed the group is waited for only in calls that it has made. */
    @Test
    void endOfCallsIsVisibleToOtherRanks() {
        Operation.Agreed nothing = new Operation.Agreed(null, new long[0], null, 0);
        List<Operation> operations =
                IntStream.rangeClosed(0, 3)
                        .mapToObj(
                                number ->
                                        TestOperations.create(
                                                OpType.BARRIER,
                                                number,
                                                "hosts",
                                                Duration.ofSeconds(30),
                                                nothing))
                        .toList();
        for (int number = 1; number <= 3; number++) {
            assertNull(hosts.get(0).departedBefore(operations.get(number)));
        }
        hosts.get(2).end(); // As before any group is destroyed.
        hosts.get(2).endCalls(2);
        assertNull(hosts.get(0).departedBefore(operations.get(1)));
        assertNull(hosts.get(0).departedBefore(operations.get(2)));
        String departed = hosts.get(0).departedBefore(operations.get(3));
        assertEquals("rank 2 has destroyed the group", departed);
        assertNull(hosts.get(2).departedBefore(operations.get(3))); // That is this rank itself.
        hosts.get(1).endCalls(0);
        departed = hosts.get(0).departedBefore(operations.get(1));
        assertEquals("rank 1 has destroyed the group", departed);
        assertNull(hosts.get(0).brokenRank());
    }

    /** Two ranks give up at about the time at which the third arrives: all do, or none. */
    @Test
    @Tag("slow")
    void allRanksMeetOrNone() {
        for (int round = 0; round < 200; round++) {
            HashStore another = new HashStore();
            List<HostSync> ranks =
                    onAll(
                            rank ->
                                    HostSync.join(
                                            new GroupContext(
                                                    "hosts",
                                                    rank,
                                                    RANKS,
                                                    another,
                                                    new BackendOptions(Duration.ofMinutes(1)),
                                                    null)));
            long late = 4_000_000 + round % 20 * 100_000;
            Operation hasty = joining(Duration.ofMillis(5));
            List<Boolean> met =
                    onAll(
                            rank -> {
                                if (rank == 2) {
                                    long begin = System.nanoTime();
                                    while (System.nanoTime() - begin < late) {
                                        Thread.onSpinWait();
                                    }
                                }
                                try {
                                    ranks.get(rank).agree(hasty, false);
                                    return true;
                                } catch (CollectiveException e) {
                                    ranks.get(rank).fail(e.getMessage());
                                    return false;
                                }
                            });
            ranks.forEach(HostSync::close);
            assertEquals(1, Set.copyOf(met).size(), "round " + round + ": " + met);
        }
    }

    private static <T> List<T> onAll(IntFunction<T> body) {
        return IntStream.range(0, RANKS)
                .mapToObj(rank -> CompletableFuture.supplyAsync(() -> body.apply(rank), THREADS))
                .toList()
                .stream()
                .map(CompletableFuture::join)
                .toList();
    }

    @Test
    void lateRankFailsWithTheSameError() {
        Operation hasty = joining(Duration.ofMillis(20));
        for (int rank = 0; rank < 2; rank++) {
            HostSync host = hosts.get(rank);
            CollectiveException e =
                    assertThrows(CollectiveException.class, () -> host.agree(hasty, false));
            host.fail(e.getMessage());
        }
        CollectiveException late =
                assertThrows(CollectiveException.class, () -> hosts.get(2).agree(operation, false));
        assertTrue(late.getMessage().contains("rank 0 failed"), late::getMessage);
    }

    private Operation joining(Duration timeout) {
        return new GroupContext("hosts", 0, RANKS, store, new BackendOptions(timeout), null)
                .joining();
    }

    @Test
    void endCallsEndsRunningWaits() {
        CompletableFuture<Void> waiting =
                CompletableFuture.runAsync(() -> hosts.get(0).agree(operation, false), THREADS);
        hosts.get(0).end();
        CompletionException e = assertThrows(CompletionException.class, waiting::join);
        assertTrue(e.getCause() instanceof CollectiveException, "" + e.getCause());
    }

    /** One rank records the call that the others run: all learn that, and can go on. */
    @Test
    void capturedCallDoesNotMatchAnOrdinaryCall() {
        for (int round = 0; round < RANKS; round++) {
            int odd = round;
            List<CollectiveMismatchException> differences =
                    onAll(
                            rank ->
                                    assertThrows(
                                            CollectiveMismatchException.class,
                                            () -> hosts.get(rank).agree(operation, rank == odd)));
            for (CollectiveMismatchException difference : differences) {
                String message = difference.getMessage();
                assertTrue(
                        message.contains("rank " + odd + " called init() into a graph"), message);
                assertTrue(message.contains(" called init();"), message);
                assertTrue(message.endsWith("all into a graph or none"), message);
                assertFalse(difference.isGroupBroken());
            }
            boolean captured = round % 2 == 0;
            onAll(
                    rank -> {
                        hosts.get(rank).agree(operation, captured);
                        hosts.get(rank).publish(operation, captured);
                        return null;
                    });
        }
        assertNull(hosts.get(0).difference());
    }

    private void publish(int rank, boolean captured) {
        hosts.get(rank).publish(contexts.get(rank).joining(), captured);
    }

    /** Hosts do not wait until a rank is so far ahead that it would overwrite its own calls. */
    @Test
    void publishedCallsAreComparedLater() {
        for (int round = 0; round < 3 * CallLog.SLOTS; round++) {
            for (int rank = 0; rank < RANKS; rank++) {
                publish(rank, round % 7 == 0);
            }
        }
        for (int i = 0; i < CallLog.SLOTS; i++) {
            publish(0, false);
        }
        assertNull(hosts.get(0).difference());
        assertEquals(List.of(1, 2), hosts.get(0).slowestRanks());
        assertEquals(List.of(), hosts.get(1).slowestRanks());
        CompletableFuture<Void> ahead =
                CompletableFuture.runAsync(() -> publish(0, false), THREADS);
        publish(1, false);
        assertFalse(ahead.isDone()); // It waits for rank 2 as well.
        publish(2, false);
        ahead.join();
    }

    /** Every rank finds the mismatch, also the one that called first, with each rank's call. */
    @Test
    void publishedCallsThatDifferAreFoundByAll() {
        publish(0, false);
        publish(1, false);
        String message =
                assertThrows(CollectiveMismatchException.class, () -> publish(2, true))
                        .getMessage();
        assertTrue(message.contains("call 1 of group 'hosts'"), message);
        assertTrue(message.contains("ranks 0, 1 called init()"), message);
        assertTrue(message.contains("rank 2 called init() into a graph"), message);
        for (int rank = 0; rank < RANKS; rank++) {
            assertEquals(message, hosts.get(rank).difference().getMessage());
        }
    }

    /** Also if a rank was so far ahead that the slower one cannot see its call any more. */
    @Test
    void aDifferenceIsFoundByARankFarAhead() {
        for (int i = 0; i < CallLog.SLOTS; i++) {
            publish(0, i == 0);
        }
        publish(2, true);
        CompletableFuture<Void> ahead =
                CompletableFuture.runAsync(() -> publish(0, false), THREADS);
        assertThrows(CollectiveMismatchException.class, () -> publish(1, false));
        CompletionException e = assertThrows(CompletionException.class, ahead::join);
        assertEquals(CollectiveMismatchException.class, e.getCause().getClass());
    }
}
