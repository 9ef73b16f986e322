/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.nccl.NcclGroup;

/**
 * The operations that one thread issues between the begin and the end of a {@link
 * org.djlx.collectives.NcclBatch}, or of coalesced operations, which NCCL then starts together.
 */
public final class Batch {

    private static final ThreadLocal<Batch> CURRENT = new ThreadLocal<>();
    private static final AtomicInteger OPEN = new AtomicInteger(); // of all threads

    // In the order of the calls. NCCL starts a step as a whole, and runs it in an order of its own.
    private final Map<NcclQueue, Map<Integer, List<NcclWork>>> steps = new LinkedHashMap<>();
    private int step;
    private int depth;
    private int together; // the part of the depth that asks for one step
    private Throwable failure; // of the calls

    private Batch() {}

    /**
     * Runs calls as a batch.
     *
     * @param calls issue operations
     * @see org.djlx.collectives.NcclBatch#run
     */
    public static void run(Runnable calls) {
        begin();
        try {
            calls.run();
        } catch (RuntimeException | Error e) {
            CURRENT.get().failure = e;
            throw e;
        } finally {
            end();
        }
    }

    /** The batch that this thread has open, or null. */
    static Batch current() {
        return CURRENT.get();
    }

    /** Throws if this thread issues a batch, for an operation that is to be waited for at once. */
    public static void requireNone(Operation operation) {
        if (current() != null) {
            throw new IllegalStateException(
                    operation + " cannot be waited for within a batch: call it with asyncOp=true");
        }
    }

    /** Tells whether any thread issues a batch, or has yet to start its operations. */
    public static boolean isAnyOpen() {
        return OPEN.get() > 0;
    }

    private static void begin() {
        Batch batch = CURRENT.get();
        if (batch == null) {
            OPEN.incrementAndGet();
            batch = new Batch();
            CURRENT.set(batch);
        }
        batch.depth++;
    }

    private static void end() {
        Batch batch = CURRENT.get();
        batch.depth--;
        if (batch.depth == 0) {
            CURRENT.remove();
            try {
                batch.launch();
            } finally {
                OPEN.decrementAndGet();
            }
        }
    }

    /** Begins operations of which none depends on another. */
    static void beginTogether() {
        begin();
        Batch batch = CURRENT.get();
        if (batch.together++ == 0) {
            batch.step++;
        }
    }

    static void endTogether() {
        CURRENT.get().together--;
        end();
    }

    /** Adds an operation, which the end of the batch launches. */
    void add(NcclQueue queue, NcclWork work) {
        if (together == 0) {
            step++;
        }
        int key = work.isMessage() ? 0 : step; // Messages wait for each other in any order.
        steps.computeIfAbsent(queue, absent -> new LinkedHashMap<>())
                .computeIfAbsent(key, absent -> new ArrayList<>())
                .add(work);
    }

    private void launch() {
        if (failure != null) {
            steps.keySet().forEach(queue -> queue.fail(reason(failure)));
            return;
        }
        Map<NcclQueue, Deque<List<NcclWork>>> own = new LinkedHashMap<>();
        steps.forEach(
                (queue, units) -> {
                    if (queue.own(units.values())) {
                        own.put(queue, new ArrayDeque<>(units.values()));
                    }
                });
        Set<NcclQueue> queues = Set.copyOf(own.keySet());
        try {
            while (!own.isEmpty()) {
                NcclGroup.run(() -> own.forEach((queue, units) -> queue.launch(units.peek())));
                own.forEach((queue, units) -> queue.launched(units.poll()));
                own.values().removeIf(Collection::isEmpty);
            }
        } catch (RuntimeException | Error e) {
            CollectiveException reason = reason(e);
            queues.forEach(queue -> queue.fail(reason));
            throw reason;
        } finally {
            queues.forEach(NcclQueue::release);
        }
    }

    private static CollectiveException reason(Throwable cause) {
        return new CollectiveException(
                "a batch could not be started: " + cause.getMessage(), cause);
    }
}
