// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.time.Duration;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreTimeoutException;
import org.djlx.nativeops.host.Durations;

/** Exceptions of the stores, with the same messages for all implementations. */
public final class StoreErrors {

    private static final int MAX_KEYS = 16;
    private static final int MAX_KEY_CHARS = 128;

    private StoreErrors() {}

    /** Creates the exception for a wait in a store, given as text, that timed out. */
    public static StoreTimeoutException timeout(
            String store, String operation, Duration timeout, List<String> missing) {
        String message =
                ("%s: %s timed out after %s: no rank has set the keys %s; check that the ranks that"
                                + " set them are running, or increase the timeout")
                        .formatted(store, operation, Durations.text(timeout), quote(missing));
        return new StoreTimeoutException(message, missing);
    }

    public static StoreTimeoutException emptyQueue(String store, Duration timeout, String queue) {
        String message =
                ("%s: queuePop timed out after %s: the queue %s is empty; check that the ranks that"
                                + " push to it are running, or increase the timeout")
                        .formatted(store, Durations.text(timeout), quote(queue));
        return new StoreTimeoutException(message, List.of(queue));
    }

    /** Creates the exception of a method of {@link Store} that a store leaves to its default. */
    public static UnsupportedOperationException unsupported(Object store, String method) {
        return new UnsupportedOperationException(
                "%s: %s does not implement %s; implement it, or use TcpStore, FileStore or HashStore"
                        .formatted(store, store.getClass().getName(), method));
    }

    public static CollectiveException closed(String store, String operation) {
        return new CollectiveException(
                "%s: %s: the store has been closed; close it after its last use"
                        .formatted(store, operation));
    }

    /**
     * Creates the exception for an interrupted wait. The caller must restore the interrupt flag.
     */
    public static CollectiveException interrupted(
            String store, String operation, List<String> keys) {
        return new CollectiveException(
                "%s: %s: interrupted while waiting for the keys %s"
                        .formatted(store, operation, quote(keys)));
    }

    /** Formats keys for a message: quoted, without control characters, truncated. */
    public static String quote(List<String> keys) {
        String shown =
                keys.stream()
                        .limit(MAX_KEYS)
                        .map(StoreErrors::quote)
                        .collect(Collectors.joining(", "));
        int hidden = keys.size() - MAX_KEYS;
        return "[" + shown + (hidden > 0 ? ", and " + hidden + " more" : "") + "]";
    }

    /** Formats a key for a message: quoted, without control characters, truncated. */
    public static String quote(String key) {
        StringBuilder text = new StringBuilder("\"");
        key.codePoints()
                .limit(MAX_KEY_CHARS)
                .forEach(c -> text.appendCodePoint(Character.isISOControl(c) ? '\uFFFD' : c));
        return text.append(key.length() > MAX_KEY_CHARS ? "...\"" : "\"").toString();
    }
}
