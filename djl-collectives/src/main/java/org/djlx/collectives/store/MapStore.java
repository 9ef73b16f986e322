// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import org.djlx.collectives.internal.store.Command;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.Request;
import org.djlx.collectives.internal.store.RequestStore;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreErrors;
import org.djlx.nativeops.host.Deadline;

/** A store whose state is one {@link KeyValueMap}. A subclass says where the map is. */
abstract class MapStore extends RequestStore {

    private final ReentrantLock lock;
    private final Condition changed;
    private final long pollNanos;
    private boolean closed; // guarded by lock

    /**
     * Creates a store. Who holds the lock uses the map; a wait looks for the changes of other
     * processes every {@code pollNanos}.
     */
    MapStore(ReentrantLock lock, long pollNanos, Duration timeout) {
        super(timeout);
        this.lock = lock;
        changed = lock.newCondition();
        this.pollNanos = pollNanos;
    }

    /** Runs a query or a change on the current map, atomically. The caller holds the lock. */
    abstract <T> T use(String operation, Function<KeyValueMap, T> code);

    /** Closes the handle; the first call only. The caller holds the lock. */
    abstract void closeMap();

    @Override
    protected final Object execute(String operation, Request request) {
        return await(operation, Duration.ZERO, map -> List.of(), request);
    }

    /** Waits until no key is missing, and executes a request on that state. */
    private Object await(
            String operation,
            Duration timeout,
            Function<KeyValueMap, List<String>> missingKeys,
            Request then) {
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        Request own = then.copied();
        lock.lock();
        try {
            while (true) {
                if (closed) {
                    throw StoreErrors.closed(toString(), operation);
                }
                List<Object> answer = new ArrayList<>(1); // holds null for a request without one
                List<String> missing =
                        use(
                                operation,
                                map -> {
                                    List<String> keys = missingKeys.apply(map);
                                    if (keys.isEmpty()) {
                                        answer.add(map.execute(own));
                                    }
                                    return keys;
                                });
                if (missing.isEmpty()) {
                    changed.signalAll();
                    return copied(answer.get(0));
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

    /** Returns an answer without the values of the map, which the caller must not change. */
    private static Object copied(Object answer) {
        if (answer instanceof List<?> list) {
            return list.stream().map(MapStore::copied).toList();
        }
        return answer instanceof byte[] value ? value.clone() : answer;
    }

    @Override
    public final byte[] get(String key, Duration timeout) {
        StoreChecks.checkKey(key);
        return multiGet("get", List.of(key), timeout).get(0);
    }

    @Override
    public final List<byte[]> multiGet(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        return multiGet("multiGet", keys, timeout);
    }

    @SuppressWarnings("unchecked")
    private List<byte[]> multiGet(String operation, List<String> keys, Duration timeout) {
        Request request = Request.of(Command.MULTI_GET, keys);
        return (List<byte[]>) await(operation, timeout, map -> map.missing(keys), request);
    }

    @Override
    public final void waitFor(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        await("waitFor", timeout, map -> map.missing(keys), Request.of(Command.CHECK, keys));
    }

    @Override
    public final byte[] queuePop(String queue, Duration timeout) {
        StoreChecks.checkKey(queue);
        List<String> queues = List.of(queue);
        try {
            return (byte[])
                    await(
                            "queuePop",
                            timeout,
                            map -> map.queueLength(queue) == 0 ? queues : List.of(),
                            Request.of(Command.QUEUE_POP, queues));
        } catch (StoreTimeoutException e) {
            throw StoreErrors.emptyQueue(toString(), timeout, queue);
        }
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
