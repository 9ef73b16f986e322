/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.djlx.collectives.BackendOptions;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.HashStore;
import org.djlx.collectives.Operation;
import org.junit.jupiter.api.AfterEach;
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
    void ranksMeet() {
        AtomicInteger arrived = new AtomicInteger();
        List<CompletableFuture<Void>> ranks =
                hosts.stream()
                        .map(
                                host ->
                                        CompletableFuture.runAsync(
                                                () -> {
                                                    for (int i = 1; i <= 1000; i++) {
                                                        host.agree(operation);
                                                        arrived.incrementAndGet();
                                                        host.meet(operation);
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
    void whoHasLeftIsNotBroken() {
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

    @Test
    void endEndsWaits() {
        CompletableFuture<Void> waiting =
                CompletableFuture.runAsync(() -> hosts.get(0).agree(operation), THREADS);
        hosts.get(0).end();
        CompletionException e = assertThrows(CompletionException.class, waiting::join);
        assertTrue(e.getCause() instanceof CollectiveException, "" + e.getCause());
    }
}
