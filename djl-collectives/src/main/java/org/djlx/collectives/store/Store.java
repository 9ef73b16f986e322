/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CollectiveException;

/**
 * A key-value store shared by all ranks of a job, through which they find each other; the
 * counterpart of {@code torch.distributed.Store}, whose names and semantics it keeps.
 *
 * <p>Keys are non-empty strings, values byte arrays. All methods are thread-safe. A method that
 * blocks takes a timeout and throws {@link StoreTimeoutException}, naming the keys that are
 * missing, when it expires; a store whose server is gone throws {@link CollectiveException}. Arrays
 * passed in are copied or sent before the method returns; arrays returned belong to the caller.
 */
public interface Store extends AutoCloseable {

    /**
     * Sets a key, replacing an earlier value.
     *
     * @param key the key
     * @param value the value
     */
    void set(String key, byte[] value);

    /**
     * Returns the value of a key, waiting until the key is set.
     *
     * @param key the key
     * @param timeout how long to wait
     * @return the value
     */
    byte[] get(String key, Duration timeout);

    /**
     * Returns the value of a key, waiting for it at most {@link #timeout()}.
     *
     * @param key the key
     * @return the value
     */
    default byte[] get(String key) {
        return get(key, timeout());
    }

    /**
     * Adds to a counter, which is 0 while its key is unset. The value is stored as a decimal
     * string, as PyTorch does.
     *
     * @param key the key
     * @param amount what to add
     * @return the counter's new value
     * @throws IllegalArgumentException if the key holds something other than a counter
     */
    long add(String key, long amount);

    /**
     * Replaces the value of a key if it equals an expected one. If the key is unset and {@code
     * expected} is empty, the key is set.
     *
     * @param key the key
     * @param expected the value to compare with
     * @param desired the value to set
     * @return the key's value afterwards; if the key is unset and {@code expected} is not empty,
     *     {@code expected}
     */
    byte[] compareSet(String key, byte[] expected, byte[] desired);

    /**
     * Appends to a value; an unset key is set.
     *
     * @param key the key
     * @param value what to append
     */
    void append(String key, byte[] value);

    /**
     * Tells whether all given keys are set, without waiting.
     *
     * @param keys the keys
     * @return true if every key is set
     */
    boolean check(List<String> keys);

    /**
     * Waits until all given keys are set.
     *
     * @param keys the keys
     * @param timeout how long to wait
     */
    void waitFor(List<String> keys, Duration timeout);

    /**
     * Sets several keys at once.
     *
     * @param keys the keys
     * @param values the values, one for each key
     */
    void multiSet(List<String> keys, List<byte[]> values);

    /**
     * Returns the values of several keys, waiting until all are set.
     *
     * @param keys the keys
     * @param timeout how long to wait
     * @return the values in the order of the keys
     */
    List<byte[]> multiGet(List<String> keys, Duration timeout);

    /**
     * Deletes a key.
     *
     * @param key the key
     * @return true if the key was set
     */
    boolean delete(String key);

    /**
     * Returns the number of keys in the whole store.
     *
     * @return the number of keys
     */
    long numKeys();

    /**
     * Returns how long methods without a timeout of their own wait.
     *
     * @return the timeout
     */
    Duration timeout();

    /** Releases what this handle on the store holds. Idempotent. */
    @Override
    void close();
}
