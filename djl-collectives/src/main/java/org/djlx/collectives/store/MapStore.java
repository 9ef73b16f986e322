// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Function;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreErrors;
import org.djlx.nativeops.host.Deadline;

/** A store whose state is one {@link KeyValueMap}. A subclass says where the map is. */
abstract class MapStore implements Store {

    private final ReentrantLock lock;
    private final Condition changed;
    private final long pollNanos;
    private final Duration timeout;
    private boolean closed; // guarded by lock

    /**
     * Creates a store. Who holds the lock uses the map; a wait looks for the changes of other
     * processes every {@code pollNanos}.
     */
    MapStore(ReentrantLock lock, long pollNanos, Duration timeout) {
        this.lock = lock;
        changed = lock.newCondition();
        this.pollNanos = pollNanos;
        this.timeout = StoreChecks.checkTimeout(timeout);
    }

    /** Runs a query or a change on the current map, atomically. The caller holds the lock. */
    abstract <T> T use(String operation, Function<KeyValueMap, T> code);

    /** Closes the handle; the first call only. The caller holds the lock. */
    abstract void closeMap();

    private <T> T run(String operation, Function<KeyValueMap, T> code) {
        lock.lock();
        try {
            if (closed) {
                throw StoreErrors.closed(toString(), operation);
            }
            T answer = use(operation, code);
            changed.signalAll();
            return answer;
        } finally {
            lock.unlock();
        }
    }

    private void change(String operation, Consumer<KeyValueMap> code) {
        run(
                operation,
                values -> {
                    code.accept(values);
                    return null;
                });
    }

    /** Waits until no key is missing, and runs a query on that state. */
    private <T> T await(
            String operation,
            Duration timeout,
            Function<KeyValueMap, List<String>> missingKeys,
            Function<KeyValueMap, T> query) {
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        lock.lock();
        try {
            while (true) {
                if (closed) {
                    throw StoreErrors.closed(toString(), operation);
                }
                List<T> answer = new ArrayList<>(1); // holds null for a query without an answer
                List<String> missing =
                        use(
                                operation,
                                values -> {
                                    List<String> unset = missingKeys.apply(values);
                                    if (unset.isEmpty()) {
                                        answer.add(query.apply(values));
                                    }
                                    return unset;
                                });
                if (missing.isEmpty()) {
                    return answer.get(0);
                }
                if (deadline.isOver()) {
                    throw StoreErrors.timeout(toString(), operation, timeout, missing);
                }
                try {
                    changed.awaitNanos(Math.min(pollNanos, deadline.remainingNanos()));
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                    throw StoreErrors.interrupted(toString(), operation, missing);
                }
            }
        } finally {
            lock.unlock();
        }
    }

    @Override
    public final void set(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        change("set", values -> values.set(key, value.clone()));
    }

    @Override
    public final byte[] get(String key, Duration timeout) {
        StoreChecks.checkKey(key);
        return multiGet("get", List.of(key), timeout).get(0);
    }

    @Override
    public final long add(String key, long amount) {
        StoreChecks.checkKey(key);
        return run("add", values -> values.add(key, amount));
    }

    @Override
    public final byte[] compareSet(String key, byte[] expected, byte[] desired) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(expected);
        StoreChecks.checkValue(desired);
        return run(
                "compareSet", values -> values.compareSet(key, expected, desired.clone()).clone());
    }

    @Override
    public final void append(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        change("append", values -> values.append(key, value.clone()));
    }

    @Override
    public final boolean check(List<String> keys) {
        StoreChecks.checkKeys(keys);
        return run("check", values -> values.missing(keys).isEmpty());
    }

    @Override
    public final void waitFor(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        await("waitFor", timeout, values -> values.missing(keys), values -> null);
    }

    @Override
    public final void multiSet(List<String> keys, List<byte[]> values) {
        StoreChecks.checkPairs(keys, values);
        change(
                "multiSet",
                map -> {
                    for (int i = 0; i < keys.size(); i++) {
                        map.set(keys.get(i), values.get(i).clone());
                    }
                });
    }

    @Override
    public final List<byte[]> multiGet(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        return multiGet("multiGet", keys, timeout);
    }

    private List<byte[]> multiGet(String operation, List<String> keys, Duration timeout) {
        return await(
                operation,
                timeout,
                values -> values.unset(keys),
                values -> keys.stream().map(key -> values.get(key).clone()).toList());
    }

    @Override
    public final void queuePush(String queue, byte[] value) {
        StoreChecks.checkKey(queue);
        StoreChecks.checkValue(value);
        change("queuePush", values -> values.push(queue, value.clone()));
    }

    @Override
    public final byte[] queuePop(String queue, Duration timeout) {
        StoreChecks.checkKey(queue);
        try {
            return await(
                    "queuePop",
                    timeout,
                    values -> values.queueLength(queue) == 0 ? List.of(queue) : List.of(),
                    values -> values.pop(queue));
        } catch (StoreTimeoutException e) {
            throw StoreErrors.emptyQueue(toString(), timeout, queue);
        }
    }

    @Override
    public final long queueLength(String queue) {
        StoreChecks.checkKey(queue);
        return run("queueLength", values -> values.queueLength(queue));
    }

    @Override
    public final boolean delete(String key) {
        StoreChecks.checkKey(key);
        return run("delete", values -> values.delete(key));
    }

    @Override
    public final long numKeys() {
        return run("numKeys", values -> (long) values.size());
    }

    @Override
    public final List<String> listKeys() {
        return run("listKeys", KeyValueMap::keys);
    }

    @Override
    public final Duration timeout() {
        return timeout;
    }

    @Override
    public final void close() {
        lock.lock();
        try {
            if (!closed) {
                closed = true;
                changed.signalAll();
                closeMap();
            }
        } finally {
            lock.unlock();
        }
    }
}
