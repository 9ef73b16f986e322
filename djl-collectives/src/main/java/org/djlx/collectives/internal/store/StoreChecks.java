/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import java.nio.charset.CharsetEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.store.Store;

/** Checks of what callers pass to a {@link Store}, the same for all stores. */
public final class StoreChecks {

    /** How long stores wait unless told otherwise; PyTorch's default. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(5);

    private StoreChecks() {}

    /**
     * Checks a key.
     *
     * @param key the key: non-empty, and text that UTF-8 can carry
     */
    public static void checkKey(String key) {
        checkKey(key, StandardCharsets.UTF_8.newEncoder());
    }

    /**
     * Checks keys.
     *
     * @param keys the keys
     */
    public static void checkKeys(List<String> keys) {
        CharsetEncoder encoder = StandardCharsets.UTF_8.newEncoder();
        Required.argument("the list of keys", keys).forEach(key -> checkKey(key, encoder));
    }

    /**
     * Checks keys and their values.
     *
     * @param keys the keys
     * @param values as many values
     */
    public static void checkPairs(List<String> keys, List<byte[]> values) {
        checkKeys(keys);
        Required.argument("the list of values", values);
        if (keys.size() != values.size()) {
            throw new IllegalArgumentException(
                    "multiSet: " + keys.size() + " keys, but " + values.size() + " values");
        }
        values.forEach(StoreChecks::checkValue);
    }

    /**
     * Checks a value.
     *
     * @param value the value, which may be empty
     */
    public static void checkValue(byte[] value) {
        if (value == null) {
            throw new IllegalArgumentException("A value must not be null");
        }
    }

    /**
     * Checks a timeout.
     *
     * @param timeout the timeout, zero or positive
     * @return the timeout
     */
    public static Duration checkTimeout(Duration timeout) {
        if (timeout == null || timeout.isNegative()) {
            throw new IllegalArgumentException(
                    "A timeout must be zero or positive, not " + timeout);
        }
        return timeout;
    }

    private static void checkKey(String key, CharsetEncoder encoder) {
        if (key == null || key.isEmpty()) {
            throw new IllegalArgumentException("A key must be a non-empty string, not " + key);
        }
        if (!encoder.canEncode(key)) {
            throw new IllegalArgumentException(
                    "The key "
                            + StoreErrors.quote(key)
                            + " has half a surrogate pair, which UTF-8 cannot carry");
        }
    }
}
