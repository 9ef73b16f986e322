// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.Deadline;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreErrors;

/**
 * A store in memory, for ranks that are threads of one JVM; the counterpart of {@code
 * torch.distributed.HashStore}.
 *
 * <p>All ranks share one object. Every method is atomic. {@link #close()} closes the store for all
 * ranks: current waits and later calls throw {@link CollectiveException}. The creator of the store
 * closes it.
 */
public final class HashStore implements Store {

    private static final String NAME = "HashStore";

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private final KeyValueMap values = new KeyValueMap();
    private final Duration timeout;
    private boolean closed;

    /** Creates an empty store whose methods wait up to 5 minutes. */
    public HashStore() {
        this(StoreChecks.DEFAULT_TIMEOUT);
    }

    /**
     * Creates an empty store.
     *
     * @param timeout how long methods without a timeout parameter wait
     */
    public HashStore(Duration timeout) {
        this.timeout = StoreChecks.checkTimeout(timeout);
    }

    /** {@inheritDoc} */
    @Override
    public void set(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        change("set", () -> values.set(key, value.clone()));
    }

    /** {@inheritDoc} */
    @Override
    public byte[] get(String key, Duration timeout) {
        StoreChecks.checkKey(key);
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        return locked(
                "get",
                () -> {
                    await("get", List.of(key), deadline);
                    return values.get(key).clone();
                });
    }

    /** {@inheritDoc} */
    @Override
    public long add(String key, long amount) {
        StoreChecks.checkKey(key);
        return locked(
                "add",
                () -> {
                    long sum = values.add(key, amount);
                    changed.signalAll();
                    return sum;
                });
    }

    /** {@inheritDoc} */
    @Override
    public byte[] compareSet(String key, byte[] expected, byte[] desired) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(expected);
        StoreChecks.checkValue(desired);
        return locked(
                "compareSet",
                () -> {
                    byte[] now = values.compareSet(key, expected, desired.clone());
                    changed.signalAll();
                    return now.clone();
                });
    }

    /** {@inheritDoc} */
    @Override
    public void append(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        change("append", () -> values.append(key, value.clone()));
    }

    /** {@inheritDoc} */
    @Override
    public boolean check(List<String> keys) {
        StoreChecks.checkKeys(keys);
        return locked("check", () -> values.missing(keys).isEmpty());
    }

    /** {@inheritDoc} */
    @Override
    public void waitFor(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        locked(
                "waitFor",
                () -> {
                    await("waitFor", keys, deadline);
                    return null;
                });
    }

    /** {@inheritDoc} */
    @Override
    public void multiSet(List<String> keys, List<byte[]> values) {
        StoreChecks.checkPairs(keys, values);
        change(
                "multiSet",
                () -> {
                    for (int i = 0; i < keys.size(); i++) {
                        this.values.set(keys.get(i), values.get(i).clone());
                    }
                });
    }

    /** {@inheritDoc} */
    @Override
    public List<byte[]> multiGet(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        return locked(
                "multiGet",
                () -> {
                    await("multiGet", keys, deadline);
                    return keys.stream().map(key -> values.get(key).clone()).toList();
                });
    }

    /** {@inheritDoc} */
    @Override
    public boolean delete(String key) {
        StoreChecks.checkKey(key);
        return locked("delete", () -> values.delete(key));
    }

    /** {@inheritDoc} */
    @Override
    public long numKeys() {
        return locked("numKeys", () -> (long) values.size());
    }

    /** {@inheritDoc} */
    @Override
    public Duration timeout() {
        return timeout;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        lock.lock();
        try {
            closed = true;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void change(String operation, Runnable action) {
        locked(
                operation,
                () -> {
                    action.run();
                    changed.signalAll();
                    return null;
                });
    }

    private <T> T locked(String operation, Supplier<T> action) {
        lock.lock();
        try {
            checkOpen(operation);
            return action.get();
        } finally {
            lock.unlock();
        }
    }

    /** Waits until all keys are set. The caller holds the lock. */
    private void await(String operation, List<String> keys, Deadline deadline) {
        List<String> missing = values.missing(keys);
        while (!missing.isEmpty()) {
            if (deadline.isOver()) {
                throw StoreErrors.timeout(NAME, operation, deadline.timeout(), missing);
            }
            try {
                changed.awaitNanos(deadline.remainingNanos());
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw StoreErrors.interrupted(NAME, operation, missing);
            }
            checkOpen(operation);
            missing = values.missing(missing);
            if (missing.isEmpty()) {
                // One that was there at first may have been deleted meanwhile.
                missing = values.missing(keys);
            }
        }
    }

    private void checkOpen(String operation) {
        if (closed) {
            throw StoreErrors.closed(NAME, operation);
        }
    }
}
