// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.nio.charset.CharsetEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.store.Store;
import org.djlx.nativeops.host.Required;

/** Argument checks that all {@link Store} implementations share. */
public final class StoreChecks {

    /** The default timeout of stores: 5 minutes, as in PyTorch. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(5);

    private StoreChecks() {}

    /** Requires a key that is not empty, and can be encoded as UTF-8. */
    public static void checkKey(String key) {
        checkKey(key, StandardCharsets.UTF_8.newEncoder());
    }

    public static void checkKeys(List<String> keys) {
        CharsetEncoder encoder = StandardCharsets.UTF_8.newEncoder();
        Required.argument("the list of keys", keys).forEach(key -> checkKey(key, encoder));
    }

    public static void checkPairs(List<String> keys, List<byte[]> values) {
        checkKeys(keys);
        Required.argument("the list of values", values);
        if (keys.size() != values.size()) {
            throw new IllegalArgumentException(
                    String.format(
                            "multiSet: got %d keys and %d values; pass one value per key",
                            keys.size(), values.size()));
        }
        values.forEach(StoreChecks::checkValue);
    }

    /** Requires a value; it may be empty. */
    public static void checkValue(byte[] value) {
        Required.argument("the value", value);
    }

    /** Returns a timeout; requires that it is zero or positive. */
    public static Duration checkTimeout(Duration timeout) {
        if (timeout == null || timeout.isNegative()) {
            throw new IllegalArgumentException(
                    "the timeout must be zero or positive, but is " + timeout);
        }
        return timeout;
    }

    private static void checkKey(String key, CharsetEncoder encoder) {
        if (key == null || key.isEmpty()) {
            throw new IllegalArgumentException(
                    "the key is "
                            + (key == null ? "null" : "empty")
                            + "; it must be a non-empty string");
        }
        if (!encoder.canEncode(key)) {
            throw new IllegalArgumentException(
                    "the key "
                            + StoreErrors.quote(key)
                            + " contains an unpaired surrogate, which UTF-8 cannot encode");
        }
    }
}
