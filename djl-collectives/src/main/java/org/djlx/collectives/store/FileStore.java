// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.channels.FileLockInterruptionException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.RequestLog;
import org.djlx.collectives.internal.store.StoreChecks;
import org.djlx.nativeops.host.Required;

/**
 * A store in a file, for processes on one host or with a common file system; the counterpart of
 * {@code torch.distributed.FileStore}.
 *
 * <ul>
 *   <li>The file is a log of requests. Every change is appended under a file lock, so the file
 *       grows with every write.
 *   <li>A wait polls the file every 10 ms.
 *   <li>The file is deleted when {@code worldSize} handles have been closed. A job that dies leaves
 *       it behind. As with PyTorch, delete it before you use the path again.
 *   <li>The format is not PyTorch's, which needs {@code flock}; Java does not have it.
 *   <li>A network file system must support POSIX locks.
 * </ul>
 */
public final class FileStore extends MapStore {

    private static final long POLL_NANOS = 10_000_000;

    // A file lock belongs to the process, and ends when any of its channels on the file is closed.
    private static final ReentrantLock PROCESS = new ReentrantLock();

    private final Path path;
    private final int worldSize;

    // Guarded by PROCESS.
    private Object fileKey; // identity of the file; null until it is opened
    private RequestLog log = new RequestLog();

    /**
     * Opens a handle whose methods wait up to 5 minutes.
     *
     * @param path the file, created if it does not exist; its directory must exist
     * @param worldSize the number of handles that the job opens
     */
    public FileStore(Path path, int worldSize) {
        this(path, worldSize, StoreChecks.DEFAULT_TIMEOUT);
    }

    /** Opens a handle whose methods without a timeout parameter wait for a time. */
    public FileStore(Path path, int worldSize, Duration timeout) {
        super(PROCESS, POLL_NANOS, timeout);
        if (worldSize < 1) {
            throw new IllegalArgumentException(
                    "FileStore: the world size must be at least 1, but is " + worldSize);
        }
        this.worldSize = worldSize;
        this.path = Required.argument("FileStore: path", path).toAbsolutePath().normalize();
        if (!Files.isDirectory(this.path.resolveSibling("."))) {
            throw new CollectiveException(
                    this
                            + ": the directory does not exist; create it on a file system that all"
                            + " ranks share");
        }
        PROCESS.lock();
        try {
            withFile("open", file -> null);
        } finally {
            PROCESS.unlock();
        }
    }

    /** The last handle of the job deletes the file. */
    @Override
    void closeMap() {
        try {
            if (!fileKey.equals(keyOfPath())) {
                return;
            }
        } catch (IOException e) {
            throw failure("close", e);
        }
        withFile(
                "close",
                file -> {
                    boolean last = log.close() >= worldSize;
                    log.appendTo(file);
                    if (last) {
                        Files.delete(path);
                    }
                    return null;
                });
    }

    @Override
    <T> T use(String operation, Function<KeyValueMap, T> code) {
        return withFile(
                operation,
                file -> {
                    T answer = code.apply(log);
                    log.appendTo(file);
                    return answer;
                });
    }

    private interface Use<T> {
        T with(RandomAccessFile file) throws IOException;
    }

    /**
     * Runs code while no other handle uses the file, and the log is up to date. An interrupt of the
     * caller does not cancel it.
     */
    private <T> T withFile(String operation, Use<T> code) {
        boolean interrupted = false;
        try {
            while (true) {
                Object before = keyOfPath();
                checkKey(before);
                // Its reads and writes ignore interrupts; those of a channel close the file.
                try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
                    file.getChannel().lock();
                    Object now = keyOfPath();
                    checkKey(now);
                    if (before == null || !before.equals(now)) {
                        // Just created, or deleted by the last handle of an earlier job. Java
                        // cannot identify an open file: open it again.
                        continue;
                    }
                    if (fileKey == null) {
                        RequestLog.begin(file);
                        fileKey = now;
                    }
                    return with(file, code);
                } catch (FileLockInterruptionException e) {
                    interrupted |= Thread.interrupted();
                }
            }
        } catch (IOException e) {
            throw failure(operation, e);
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private <T> T with(RandomAccessFile file, Use<T> code) throws IOException {
        boolean done = false;
        try {
            log.replay(file);
            T answer = code.with(file);
            done = true;
            return answer;
        } finally {
            if (!done) {
                log = new RequestLog(); // It may have changes that the file does not have.
            }
        }
    }

    private void checkKey(Object found) throws IOException {
        if (fileKey != null && !fileKey.equals(found)) {
            throw new IOException(
                    "the file was deleted while in use, by another program or because more handles"
                            + " than the world size were opened");
        }
    }

    private Object keyOfPath() throws IOException {
        try {
            BasicFileAttributes attributes = Files.readAttributes(path, BasicFileAttributes.class);
            // The inode; always the same on systems without inode numbers.
            return Objects.requireNonNullElse(attributes.fileKey(), "");
        } catch (NoSuchFileException e) {
            return null;
        }
    }

    private CollectiveException failure(String operation, IOException e) {
        return new CollectiveException(this + ": " + operation + ": " + e.getMessage(), e);
    }

    @Override
    public String toString() {
        return "FileStore " + path;
    }
}
