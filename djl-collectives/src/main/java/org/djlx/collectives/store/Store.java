// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreErrors;
import org.djlx.nativeops.host.Deadline;

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
 *   <li>A queue is not a key: {@link #numKeys}, {@link #listKeys} and {@link #delete} leave it out.
 *       But {@link #check}, {@link #waitFor}, {@link #get(String)} and {@link #multiGet} take a
 *       queue with values for a key with an empty value, as PyTorch's TCPStore does, so give queues
 *       and keys different names.
 * </ul>
 *
 * <p>A store of your own implements {@link #set}, {@link #get(String, Duration)}, {@link #add},
 * {@link #compareSet} and {@link #delete}; process groups need no more. A default calls these; that
 * of {@link #append}, {@link #numKeys}, {@link #listKeys} and the queues throws {@link
 * UnsupportedOperationException}.
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

    /** Deletes a key; returns whether it was set. */
    boolean delete(String key);

    /** Appends to a value; sets an unset key. */
    default void append(String key, byte[] value) {
        throw StoreErrors.unsupported(this, "append");
    }

    /** Returns whether all given keys are set, without waiting. */
    default boolean check(List<String> keys) {
        try {
            multiGet(keys, Duration.ZERO);
            return true;
        } catch (StoreTimeoutException e) {
            return false;
        }
    }

    /** Waits until all given keys are set. */
    default void waitFor(List<String> keys, Duration timeout) {
        multiGet(keys, timeout);
    }

    /** Sets several keys. */
    default void multiSet(List<String> keys, List<byte[]> values) {
        StoreChecks.checkPairs(keys, values);
        for (int i = 0; i < keys.size(); i++) {
            set(keys.get(i), values.get(i));
        }
    }

    /** Returns the values of several keys in the order of the keys, waiting until all are set. */
    default List<byte[]> multiGet(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        List<byte[]> values = new ArrayList<>();
        List<String> missing = new ArrayList<>();
        for (String key : keys) {
            try {
                values.add(get(key, Duration.ofNanos(deadline.remainingNanos())));
            } catch (StoreTimeoutException e) {
                missing.add(key);
            }
        }
        if (!missing.isEmpty()) {
            missing = missing.stream().distinct().toList();
            throw StoreErrors.timeout(toString(), "multiGet", timeout, missing);
        }
        return values;
    }

    /** {@return the number of keys in the whole store} */
    default long numKeys() {
        throw StoreErrors.unsupported(this, "numKeys");
    }

    /** {@return the keys that are set, in no particular order} */
    default List<String> listKeys() {
        throw StoreErrors.unsupported(this, "listKeys");
    }

    /** Appends a value to a queue, which exists while it has values. */
    default void queuePush(String queue, byte[] value) {
        throw StoreErrors.unsupported(this, "queuePush");
    }

    /**
     * Removes the first value of a queue, waiting until there is one; zero does not wait. Each
     * value is returned to one caller.
     */
    default byte[] queuePop(String queue, Duration timeout) {
        throw StoreErrors.unsupported(this, "queuePop");
    }

    /**
     * Removes the first value of a queue, waiting at most {@link #timeout()} until there is one.
     */
    default byte[] queuePop(String queue) {
        return queuePop(queue, timeout());
    }

    /** {@return the number of values in a queue} */
    default long queueLength(String queue) {
        throw StoreErrors.unsupported(this, "queueLength");
    }

    /**
     * Returns another handle on this store; PyTorch's {@code clone}. The caller closes it, which
     * leaves this handle open. A handle on a {@link TcpStore} has connections of its own and also
     * outlives this one, as long as the server does; that of another store ends with this one.
     */
    default Store newHandle() {
        return PrefixStore.view(this);
    }

    /** {@return how long methods without a timeout parameter wait; 5 minutes by default} */
    default Duration timeout() {
        return StoreChecks.DEFAULT_TIMEOUT;
    }

    /** Releases the resources of this handle. Idempotent. */
    @Override
    default void close() {}
}
