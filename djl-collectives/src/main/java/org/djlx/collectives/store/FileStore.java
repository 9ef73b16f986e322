// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.djlx.collectives.internal.host.Deadline;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.internal.store.FileLog;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreErrors;

/**
 * A store in a file, for processes on one host or with a common file system; the counterpart of
 * {@code torch.distributed.FileStore}.
 *
 * <ul>
 *   <li>The file is a log. Every change is appended under a file lock, so the file grows with every
 *       write.
 *   <li>A wait polls the file every 10 ms.
 *   <li>The file is deleted when {@code worldSize} handles have been closed. A job that dies leaves
 *       it behind. As with PyTorch, delete it before you use the path again.
 *   <li>The format is not PyTorch's, which needs {@code flock}; Java does not have it.
 *   <li>A network file system must support POSIX locks.
 * </ul>
 */
public final class FileStore implements Store {

    private static final long POLL_NANOS = 10_000_000;

    private final FileLog log;
    private final String name;
    private final int worldSize;
    private final Duration timeout;
    private final AtomicBoolean closed = new AtomicBoolean();

    /**
     * Opens a handle whose methods wait up to 5 minutes.
     *
     * @param path the file, created if it does not exist; its directory must exist
     * @param worldSize the number of handles that the job opens
     */
    public FileStore(Path path, int worldSize) {
        this(path, worldSize, StoreChecks.DEFAULT_TIMEOUT);
    }

    /**
     * Opens a handle.
     *
     * @param path the file, created if it does not exist; its directory must exist
     * @param worldSize the number of handles that the job opens
     * @param timeout how long methods without a timeout parameter wait
     */
    public FileStore(Path path, int worldSize, Duration timeout) {
        if (worldSize < 1) {
            throw new IllegalArgumentException(
                    "FileStore: the world size must be at least 1, but is " + worldSize);
        }
        this.worldSize = worldSize;
        this.timeout = StoreChecks.checkTimeout(timeout);
        log = FileLog.acquire(Required.argument("FileStore: path", path));
        name = "FileStore " + path;
    }

    /** {@inheritDoc} */
    @Override
    public void set(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        byte[] copy = value.clone();
        open("set")
                .write(
                        "set",
                        (values, record) -> {
                            values.set(key, copy);
                            record.put(key, copy);
                            return null;
                        });
    }

    /** {@inheritDoc} */
    @Override
    public byte[] get(String key, Duration timeout) {
        StoreChecks.checkKey(key);
        return await("get", List.of(key), timeout, values -> values.get(key).clone());
    }

    /** {@inheritDoc} */
    @Override
    public long add(String key, long amount) {
        StoreChecks.checkKey(key);
        return open("add")
                .write(
                        "add",
                        (values, record) -> {
                            long sum = values.add(key, amount);
                            record.put(key, values.get(key));
                            return sum;
                        });
    }

    /** {@inheritDoc} */
    @Override
    public byte[] compareSet(String key, byte[] expected, byte[] desired) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(expected);
        StoreChecks.checkValue(desired);
        byte[] copy = desired.clone();
        byte[] now =
                open("compareSet")
                        .write(
                                "compareSet",
                                (values, record) -> {
                                    byte[] after = values.compareSet(key, expected, copy);
                                    if (after == copy) {
                                        record.put(key, copy);
                                    }
                                    return after;
                                });
        return now.clone();
    }

    /** {@inheritDoc} */
    @Override
    public void append(String key, byte[] value) {
        StoreChecks.checkKey(key);
        StoreChecks.checkValue(value);
        byte[] copy = value.clone();
        open("append")
                .write(
                        "append",
                        (values, record) -> {
                            values.append(key, copy);
                            record.append(key, copy);
                            return null;
                        });
    }

    /** {@inheritDoc} */
    @Override
    public boolean check(List<String> keys) {
        StoreChecks.checkKeys(keys);
        return open("check").read("check", values -> values.missing(keys).isEmpty());
    }

    /** {@inheritDoc} */
    @Override
    public void waitFor(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        await("waitFor", keys, timeout, values -> true);
    }

    /** {@inheritDoc} */
    @Override
    public void multiSet(List<String> keys, List<byte[]> values) {
        StoreChecks.checkPairs(keys, values);
        List<byte[]> copies = values.stream().map(byte[]::clone).toList();
        open("multiSet")
                .write(
                        "multiSet",
                        (map, record) -> {
                            for (int i = 0; i < keys.size(); i++) {
                                map.set(keys.get(i), copies.get(i));
                                record.put(keys.get(i), copies.get(i));
                            }
                            return null;
                        });
    }

    /** {@inheritDoc} */
    @Override
    public List<byte[]> multiGet(List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        return await(
                "multiGet",
                keys,
                timeout,
                values -> keys.stream().map(key -> values.get(key).clone()).toList());
    }

    /** {@inheritDoc} */
    @Override
    public boolean delete(String key) {
        StoreChecks.checkKey(key);
        return open("delete")
                .write(
                        "delete",
                        (values, record) -> {
                            boolean wasSet = values.delete(key);
                            if (wasSet) {
                                record.delete(key);
                            }
                            return wasSet;
                        });
    }

    /** {@inheritDoc} */
    @Override
    public long numKeys() {
        return open("numKeys").read("numKeys", values -> (long) values.size());
    }

    /** {@inheritDoc} */
    @Override
    public Duration timeout() {
        return timeout;
    }

    /** Closes this handle; the last one of the job deletes the file. Idempotent. */
    @Override
    public void close() {
        if (closed.compareAndSet(false, true)) {
            log.release(worldSize);
        }
    }

    private FileLog open(String operation) {
        if (closed.get()) {
            throw StoreErrors.closed(name, operation);
        }
        return log;
    }

    /** Waits until all keys are set, and runs a query on that state. */
    private <T> T await(
            String operation, List<String> keys, Duration timeout, Function<KeyValueMap, T> query) {
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        while (true) {
            Answer<T> answer =
                    open(operation)
                            .read(
                                    operation,
                                    values -> {
                                        List<String> missing = values.missing(keys);
                                        return new Answer<>(
                                                missing,
                                                missing.isEmpty() ? query.apply(values) : null);
                                    });
            if (answer.missing.isEmpty()) {
                return answer.value;
            }
            if (deadline.isOver()) {
                throw StoreErrors.timeout(name, operation, timeout, answer.missing);
            }
            pause(operation, answer.missing, Math.min(POLL_NANOS, deadline.remainingNanos()));
        }
    }

    private void pause(String operation, List<String> missing, long nanos) {
        try {
            Thread.sleep(Duration.ofNanos(nanos).toMillis(), (int) (nanos % 1_000_000));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw StoreErrors.interrupted(name, operation, missing);
        }
    }

    private record Answer<T>(List<String> missing, T value) {}
}
