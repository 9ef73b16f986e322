/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import java.time.Duration;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.store.StoreTimeoutException;

/** Error messages of the stores, worded the same for all of them. */
public final class StoreErrors {

    private static final int MAX_KEYS = 16;
    private static final int MAX_KEY_CHARS = 128;

    private StoreErrors() {}

    /**
     * Creates the exception for a wait that took too long.
     *
     * @param store the store, as the user knows it
     * @param operation the operation
     * @param timeout how long was waited
     * @param missing the keys that are unset
     * @return the exception
     */
    public static StoreTimeoutException timeout(
            String store, String operation, Duration timeout, List<String> missing) {
        String message =
                store
                        + ": "
                        + operation
                        + " waited "
                        + timeout.toMillis()
                        + " ms for keys that no rank has set: "
                        + quote(missing)
                        + "; check that the ranks that set them are running and get this far, or"
                        + " raise the timeout";
        return new StoreTimeoutException(message, missing);
    }

    /**
     * Creates the exception for a use of a closed store.
     *
     * @param store the store, as the user knows it
     * @param operation the operation
     * @return the exception
     */
    public static CollectiveException closed(String store, String operation) {
        return new CollectiveException(
                store
                        + ": "
                        + operation
                        + ": this handle is closed; close a store only after its last use");
    }

    /**
     * Creates the exception for a wait whose thread was interrupted. The caller keeps the thread's
     * interrupt flag set.
     *
     * @param store the store, as the user knows it
     * @param operation the operation
     * @param keys the keys waited for
     * @return the exception
     */
    public static CollectiveException interrupted(
            String store, String operation, List<String> keys) {
        return new CollectiveException(
                store
                        + ": "
                        + operation
                        + ": the thread was interrupted while it waited for "
                        + quote(keys));
    }

    /**
     * Returns keys in a form fit for a message: quoted, without control characters, and not
     * endless.
     *
     * @param keys the keys
     * @return the keys
     */
    public static String quote(List<String> keys) {
        String shown =
                keys.stream()
                        .limit(MAX_KEYS)
                        .map(StoreErrors::quote)
                        .collect(Collectors.joining(", "));
        int hidden = keys.size() - MAX_KEYS;
        return "[" + shown + (hidden > 0 ? ", and " + hidden + " more" : "") + "]";
    }

    /**
     * Returns a key in a form fit for a message.
     *
     * @param key the key
     * @return the key
     */
    public static String quote(String key) {
        StringBuilder text = new StringBuilder("\"");
        key.codePoints()
                .limit(MAX_KEY_CHARS)
                .forEach(c -> text.appendCodePoint(Character.isISOControl(c) ? '\uFFFD' : c));
        return text.append(key.length() > MAX_KEY_CHARS ? "...\"" : "\"").toString();
    }
}
