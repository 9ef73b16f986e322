// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CollectiveException;

/**
 * A key-value store in which the ranks of a job meet; the counterpart of {@code
 * torch.distributed.Store}, with the same names and semantics.
 *
 * <ul>
 *   <li>Keys are non-empty strings; values are byte arrays.
 *   <li>All methods are thread-safe.
 *   <li>A method that blocks has a timeout. When it expires, {@link StoreTimeoutException} names
 *       the missing keys.
 *   <li>If the server of the store is gone, methods throw {@link CollectiveException}.
 *   <li>Arrays passed in may be modified after the call; arrays returned belong to the caller.
 * </ul>
 */
public interface Store extends AutoCloseable {

    /** Sets a key, replacing an earlier value. */
    void set(String key, byte[] value);

    /** {@return the value of a key, waiting until the key is set} */
    byte[] get(String key, Duration timeout);

    /** {@return the value of a key, waiting at most {@link #timeout()} until the key is set} */
    default byte[] get(String key) {
        return get(key, timeout());
    }

    /**
     * Adds to a counter atomically. An unset key counts as 0. As in PyTorch, the value is stored as
     * a decimal string.
     *
     * @return the counter's new value
     * @throws IllegalArgumentException if the value of the key is not a counter
     */
    long add(String key, long amount);

    /**
     * Replaces the value of a key atomically if it equals an expected value. If the key is unset
     * and {@code expected} is empty, the key is set.
     *
     * @return the key's value afterwards; if the key is unset and {@code expected} is not empty,
     *     {@code expected}
     */
    byte[] compareSet(String key, byte[] expected, byte[] desired);

    /** Appends to a value; sets an unset key. */
    void append(String key, byte[] value);

    /** Returns whether all given keys are set, without waiting. */
    boolean check(List<String> keys);

    /** Waits until all given keys are set. */
    void waitFor(List<String> keys, Duration timeout);

    /** Sets several keys. */
    void multiSet(List<String> keys, List<byte[]> values);

    /** Returns the values of several keys in the order of the keys, waiting until all are set. */
    List<byte[]> multiGet(List<String> keys, Duration timeout);

    /** Deletes a key; returns whether it was set. */
    boolean delete(String key);

    /** {@return the number of keys in the whole store} */
    long numKeys();

    /** {@return how long methods without a timeout parameter wait} */
    Duration timeout();

    /** Releases the resources of this handle. Idempotent. */
    @Override
    void close();
}
