// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.Operation;

/**
 * The operations that one thread issues within a {@link org.djlx.collectives.NcclBatch} or while
 * coalescing. The end of the batch launches them together.
 */
public final class Batch {

    private static final ThreadLocal<Batch> CURRENT = new ThreadLocal<>();
    private static final int MESSAGES = Integer.MAX_VALUE; // the step of all messages
    private static final AtomicInteger OPEN = new AtomicInteger(); // of all threads

    // In the order of the calls. Messages come last, because only their two ranks know their
    // position. NCCL launches a step as a whole, and chooses the order within the step.
    private final Map<StreamQueue, Map<Integer, List<QueuedWork>>> steps = new LinkedHashMap<>();
    private int step;
    private int depth;
    private int together; // open beginTogether calls, included in depth
    private Throwable failure; // thrown by the calls

    private Batch() {}

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

    static Batch current() {
        return CURRENT.get();
    }

    /** Requires that this thread has no open batch. */
    public static void requireNone(Operation operation) {
        if (current() != null) {
            throw new IllegalStateException(
                    operation + " cannot be waited for within a batch: call it with asyncOp=true");
        }
    }

    /** Returns whether any thread has a batch whose operations are not launched yet. */
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

    /** Begins independent operations, which form one step of the batch. */
    public static void beginTogether() {
        begin();
        Batch batch = CURRENT.get();
        if (batch.together++ == 0) {
            batch.step++;
        }
    }

    /** Ends the independent operations; the outermost end launches the batch. */
    public static void endTogether() {
        CURRENT.get().together--;
        end();
    }

    void add(StreamQueue queue, QueuedWork work) {
        if (together == 0) {
            step++;
        }
        int key = work.isMessage() ? MESSAGES : step; // Messages may start in any order.
        steps.computeIfAbsent(queue, absent -> new TreeMap<>())
                .computeIfAbsent(key, absent -> new ArrayList<>())
                .add(work);
    }

    private void launch() {
        if (failure != null) {
            steps.keySet().forEach(queue -> queue.fail(reason(failure)));
            return;
        }
        Map<StreamQueue, Deque<List<QueuedWork>>> own = new LinkedHashMap<>();
        steps.forEach(
                (queue, units) -> {
                    if (queue.own(units.values())) {
                        own.put(queue, new ArrayDeque<>(units.values()));
                    }
                });
        Set<StreamQueue> queues = Set.copyOf(own.keySet());
        try {
            while (!own.isEmpty()) {
                Connection any = own.keySet().iterator().next().connection();
                any.launchTogether(() -> own.forEach((queue, units) -> queue.launch(units.peek())));
                own.forEach((queue, units) -> queue.launched(units.poll()));
                own.values().removeIf(Collection::isEmpty);
            }
        } catch (RuntimeException | Error e) {
            CollectiveException reason = reason(e);
            queues.forEach(queue -> queue.fail(reason));
            throw reason;
        } finally {
            queues.forEach(StreamQueue::release);
        }
    }

    private static CollectiveException reason(Throwable cause) {
        return new CollectiveException(
                "a batch could not be started: " + cause.getMessage(), cause);
    }
}
