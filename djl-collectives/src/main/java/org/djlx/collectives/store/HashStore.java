// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreErrors;
import org.djlx.nativeops.host.Deadline;

/**
 * A store in memory, for ranks that are threads of one JVM; the counterpart of {@code
 * torch.distributed.HashStore}.
 *
 * <p>All ranks share one object. Every method is atomic. {@link #close()} closes the store for all
 * ranks: current waits and later calls throw {@link CollectiveException}. The creator of the store
 * closes it.
 */
public final class HashStore extends MapStore {

    private static final String NAME = "HashStore";

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private final KeyValueMap values = new KeyValueMap();
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
        super(timeout);
    }

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

    @Override
    <T> T read(String operation, Function<KeyValueMap, T> query) {
        lock.lock();
        try {
            checkOpen(operation);
            return query.apply(values);
        } finally {
            lock.unlock();
        }
    }

    @Override
    <T> T change(String operation, Function<KeyValueMap, T> change) {
        return read(
                operation,
                map -> {
                    T answer = change.apply(map);
                    changed.signalAll();
                    return answer;
                });
    }

    @Override
    <T> T await(
            String operation, List<String> keys, Duration timeout, Function<KeyValueMap, T> query) {
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        return read(
                operation,
                map -> {
                    await(operation, keys, deadline);
                    return query.apply(map);
                });
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
