// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A map with the semantics that all stores share, as c10d defines them. Counters are decimal
 * strings; {@link #compareSet} on an unset key returns the expected value.
 *
 * <p>Not thread-safe. Arrays are not copied, so a value in the map must not be modified.
 */
public final class KeyValueMap {

    private static final byte[] EMPTY = {};

    private final Map<String, byte[]> values = new HashMap<>();

    /** Creates an empty map. */
    public KeyValueMap() {}

    /**
     * Returns a value.
     *
     * @param key the key
     * @return the value, or null if the key is unset
     */
    public byte[] get(String key) {
        return values.get(key);
    }

    /**
     * Sets a key.
     *
     * @param key the key
     * @param value the value
     */
    public void set(String key, byte[] value) {
        values.put(key, value);
    }

    /**
     * Adds to a counter; an unset key counts as 0. A sum beyond 64 bits wraps around.
     *
     * @param key the key
     * @param amount the amount to add
     * @return the new value
     * @throws IllegalArgumentException if the value of the key is not a counter
     */
    public long add(String key, long amount) {
        byte[] old = values.get(key);
        long sum = (old == null ? 0 : parseCounter(key, old)) + amount;
        values.put(key, Long.toString(sum).getBytes(StandardCharsets.US_ASCII));
        return sum;
    }

    /**
     * Replaces a value if it equals the expected one; sets an unset key if {@code expected} is
     * empty.
     *
     * @param key the key
     * @param expected the value to compare with
     * @param desired the value to set
     * @return the value afterwards; {@code expected} if the key is unset
     */
    public byte[] compareSet(String key, byte[] expected, byte[] desired) {
        byte[] old = values.get(key);
        if (Arrays.equals(old == null ? EMPTY : old, expected)) {
            values.put(key, desired);
            return desired;
        }
        return old == null ? expected : old;
    }

    /**
     * Appends to a value; sets an unset key.
     *
     * @param key the key
     * @param tail the bytes to append
     */
    public void append(String key, byte[] tail) {
        byte[] old = values.get(key);
        if (old == null) {
            values.put(key, tail);
            return;
        }
        byte[] joined = Arrays.copyOf(old, Math.addExact(old.length, tail.length));
        System.arraycopy(tail, 0, joined, old.length, tail.length);
        values.put(key, joined);
    }

    /**
     * Deletes a key.
     *
     * @param key the key
     * @return true if the key was set
     */
    public boolean delete(String key) {
        return values.remove(key) != null;
    }

    /**
     * Returns whether a key is set.
     *
     * @param key the key
     * @return true if the key is set
     */
    public boolean contains(String key) {
        return values.containsKey(key);
    }

    /**
     * Returns the unset keys among some keys, each once.
     *
     * @param keys the keys
     * @return the unset keys, in the given order
     */
    public List<String> missing(Collection<String> keys) {
        return keys.stream().filter(key -> !values.containsKey(key)).distinct().toList();
    }

    /** Returns the set keys, in no particular order. */
    Set<String> keys() {
        return Set.copyOf(values.keySet());
    }

    /**
     * Returns the number of keys.
     *
     * @return the number of keys
     */
    public int size() {
        return values.size();
    }

    /**
     * Reads a counter.
     *
     * @param key the key, for the error message
     * @param value the key's value
     * @return the number
     * @throws IllegalArgumentException if the value is not a decimal 64-bit number
     */
    public static long parseCounter(String key, byte[] value) {
        try {
            return Long.parseLong(new String(value, StandardCharsets.ISO_8859_1));
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(
                    "add: key "
                            + StoreErrors.quote(key)
                            + " has a value of "
                            + value.length
                            + " bytes that is not a decimal number; set a counter only with add, or"
                            + " to a decimal 64-bit number",
                    e);
        }
    }
}
