// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.Store;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A note in a group's store by which a failed rank informs the other ranks. For groups whose ranks
 * have no shared memory. Thread-safe.
 */
public final class FailureNote {

    private static final Logger logger = LoggerFactory.getLogger(FailureNote.class);
    private static final byte[] UNSET = new byte[0];

    // Store calls may block, so they do not run on the watchdog's thread.
    private static final ExecutorService STORE_CALLS =
            Executors.newCachedThreadPool(
                    task -> {
                        Thread thread = new Thread(task, "failure-note");
                        thread.setDaemon(true);
                        return thread;
                    });

    // The interval of checks grows with the number of ranks, because all query one server.
    private static final long MIN_INTERVAL_MILLIS = 100;
    private static final long INTERVAL_MILLIS_PER_RANK = 10;
    private static final long MAX_INTERVAL_MILLIS = 500;

    private final Supplier<Optional<String>> reader;
    private final BiConsumer<Integer, String> writer;
    private final long intervalNanos;
    private final AtomicBoolean published = new AtomicBoolean();
    private final AtomicBoolean checking = new AtomicBoolean(); // stays set if the store is lost
    private volatile long lastNanos = System.nanoTime(); // the end of the last check
    private volatile String failure; // null if none is known

    private FailureNote(
            int worldSize, Supplier<Optional<String>> reader, BiConsumer<Integer, String> writer) {
        this.reader = reader;
        this.writer = writer;
        long millis = MIN_INTERVAL_MILLIS + INTERVAL_MILLIS_PER_RANK * worldSize;
        intervalNanos = Math.min(MAX_INTERVAL_MILLIS, millis) * 1_000_000;
    }

    /**
     * Creates one rank's handle of a note with its own key, for ranks that have completed an
     * exchange.
     *
     * @param key the same on all ranks, and unused in the store
     */
    public FailureNote(Store store, String key, int worldSize) {
        this(
                worldSize,
                () ->
                        store.check(List.of(key))
                                ? Optional.of(new String(store.get(key), UTF_8))
                                : Optional.empty(),
                (rank, text) -> {
                    String note = "rank " + rank + " failed: " + text;
                    store.compareSet(key, UNSET, note.getBytes(UTF_8));
                });
    }

    /**
     * Creates one rank's handle of a note for ranks that have not completed an exchange: {@link
     * #publish} makes their exchanges fail.
     *
     * @param keys the names of the exchanges, in their order
     */
    public static FailureNote ofExchanges(GroupContext context, List<String> keys) {
        return new FailureNote(
                context.worldSize(),
                () -> context.failureOfExchange(keys.get(0)),
                (rank, text) -> context.failExchanges(text, keys));
    }

    /** Announces a rank's failure to the other ranks. Later calls are no-ops. */
    public void publish(int rank, CollectiveException reason) {
        if (!published.compareAndSet(false, true)) {
            return; // Store calls on two threads might run in another order.
        }
        inBackground(() -> writer.accept(rank, reason.getMessage()));
    }

    /**
     * Returns the description of a failed rank; empty if no failure is known. Does not block: a
     * call may start a check of the store, whose result a later call returns.
     */
    public Optional<String> failure() {
        boolean due = System.nanoTime() - lastNanos > intervalNanos;
        if (due && failure == null && checking.compareAndSet(false, true)) {
            inBackground(this::check);
        }
        return Optional.ofNullable(failure);
    }

    private void check() {
        failure = reader.get().orElse(null);
        lastNanos = System.nanoTime();
        checking.set(false);
    }

    /**
     * Calls the store on another thread. Errors are only logged: without the store, ranks cannot
     * announce failures.
     */
    private static void inBackground(Runnable call) {
        STORE_CALLS.execute(
                () -> {
                    try {
                        call.run();
                    } catch (RuntimeException e) {
                        logger.debug("cannot announce or receive failures in the store", e);
                    }
                });
    }
}
