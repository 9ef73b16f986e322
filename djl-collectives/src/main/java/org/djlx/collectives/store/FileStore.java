// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import org.djlx.collectives.internal.store.FileLog;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.collectives.internal.store.StoreErrors;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.host.Required;

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
public final class FileStore extends MapStore {

    private static final long POLL_NANOS = 10_000_000;

    private final FileLog log;
    private final String name;
    private final int worldSize;
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
        super(timeout);
        if (worldSize < 1) {
            throw new IllegalArgumentException(
                    "FileStore: the world size must be at least 1, but is " + worldSize);
        }
        this.worldSize = worldSize;
        log = FileLog.acquire(Required.argument("FileStore: path", path));
        name = "FileStore " + path;
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

    @Override
    <T> T read(String operation, Function<KeyValueMap, T> query) {
        return open(operation).read(operation, query);
    }

    @Override
    <T> T change(String operation, Function<KeyValueMap, T> change) {
        return open(operation).write(operation, change);
    }

    @Override
    <T> T await(
            String operation, List<String> keys, Duration timeout, Function<KeyValueMap, T> query) {
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        while (true) {
            Answer<T> answer =
                    read(
                            operation,
                            values -> {
                                List<String> missing = values.missing(keys);
                                return new Answer<>(
                                        missing, missing.isEmpty() ? query.apply(values) : null);
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
