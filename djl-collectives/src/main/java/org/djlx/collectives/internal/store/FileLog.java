// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The file of a {@code FileStore}: a header and {@linkplain LogRecord records}. Every process
 * appends records under an exclusive lock, and replays the records of other processes.
 *
 * <p>Each JVM has one object, one open channel and one thread per file, for two reasons. A file
 * lock belongs to the process and is released when <em>any</em> of its channels on the file is
 * closed. And a channel closes itself when a thread that uses it is interrupted, so callers'
 * threads must not use it.
 *
 * <p>A process that is killed while it appends leaves an incomplete record at the end. Readers
 * ignore it, and the next writer truncates it.
 */
public final class FileLog {

    private static final Logger logger = LoggerFactory.getLogger(FileLog.class);

    private static final byte[] HEADER = "DJLSTOR1".getBytes(StandardCharsets.US_ASCII);

    private static final Map<Path, FileLog> OPEN = new HashMap<>();

    private final Path path;
    private final ExecutorService thread;
    private int handles;

    // Confined to the thread.
    private FileChannel channel;
    private Object fileKey;
    private KeyValueMap values = new KeyValueMap();
    private long position;
    private int closes;

    private FileLog(Path path) {
        this.path = path;
        thread =
                Executors.newSingleThreadExecutor(
                        task -> {
                            Thread t = new Thread(task, "djlx-filestore-" + path.getFileName());
                            t.setDaemon(true);
                            return t;
                        });
    }

    /**
     * Opens the log of a file; creates the file if it does not exist.
     *
     * @return the log, for one call of {@link #release}
     */
    public static FileLog acquire(Path file) {
        synchronized (OPEN) {
            Path path = canonical(file);
            FileLog log = OPEN.get(path);
            if (log == null) {
                log = new FileLog(path);
                try {
                    log.call("open", log::open);
                } catch (RuntimeException e) {
                    log.thread.shutdown();
                    throw e;
                }
                OPEN.put(path, log);
            }
            log.handles++;
            return log;
        }
    }

    /** Releases a handle; deletes the file if it was the job's last handle. */
    public void release(int worldSize) {
        synchronized (OPEN) {
            boolean last = --handles == 0;
            try {
                call("close", () -> closeHandle(worldSize, last));
            } finally {
                if (last) {
                    OPEN.remove(path);
                    thread.shutdown();
                }
            }
        }
    }

    /**
     * Runs a query on the current state.
     *
     * @param operation the operation, for error messages
     */
    public <T> T read(String operation, Function<KeyValueMap, T> query) {
        return call(operation, () -> locked(true, () -> query.apply(values)));
    }

    /**
     * Changes the state, and appends what has changed to the file.
     *
     * @param operation the operation, for error messages
     * @return the answer of the change
     */
    public <T> T write(String operation, Function<KeyValueMap, T> change) {
        return call(operation, () -> locked(false, () -> write(change)));
    }

    private <T> T write(Function<KeyValueMap, T> change) throws IOException {
        LogRecord record = new LogRecord();
        T answer;
        values.recordTo(record);
        try {
            answer = change.apply(values);
        } finally {
            values.recordTo(null);
        }
        if (!record.isEmpty()) {
            append(record.toBytes());
        }
        return answer;
    }

    private static Path canonical(Path file) {
        Path absolute = file.toAbsolutePath().normalize();
        try {
            return absolute.getParent().toRealPath().resolve(absolute.getFileName());
        } catch (IOException | NullPointerException e) {
            throw new CollectiveException(
                    "FileStore "
                            + absolute
                            + ": the directory does not exist; create it on a file system that all"
                            + " ranks share",
                    e);
        }
    }

    private Void open() throws IOException {
        while (channel == null) {
            Object before = keyOfPath();
            FileChannel opened =
                    FileChannel.open(
                            path,
                            StandardOpenOption.CREATE,
                            StandardOpenOption.READ,
                            StandardOpenOption.WRITE);
            try {
                FileLock held = opened.lock();
                // Java has no way to identify the file of an open channel. If the path names the
                // same file before and after opening, it is this file. Otherwise it was just
                // created, or deleted by an earlier job's last handle: retry.
                if (before != null && before.equals(keyOfPath())) {
                    readHeader(opened);
                    channel = opened;
                    fileKey = before;
                    held.release();
                }
            } finally {
                if (channel == null) {
                    opened.close();
                }
            }
        }
        return null;
    }

    private void readHeader(FileChannel opened) throws IOException {
        ByteBuffer found = ByteBuffer.allocate(HEADER.length);
        while (found.hasRemaining() && opened.read(found, found.position()) >= 0) {}
        byte[] start = Arrays.copyOf(found.array(), found.position());
        if (!Arrays.equals(start, Arrays.copyOf(HEADER, start.length))) {
            throw new IOException(
                    "the file is not a FileStore; it was not changed; choose another path");
        }
        if (start.length < HEADER.length) {
            write(opened, ByteBuffer.wrap(HEADER), 0);
        }
        position = HEADER.length;
    }

    /** Runs code with the file locked and the map up to date. */
    private <T> T locked(boolean shared, Callable<T> action) throws Exception {
        FileLock held = channel.lock(0, Long.MAX_VALUE, shared);
        try {
            if (!fileKey.equals(keyOfPath())) {
                throw new NoSuchFileException(
                        path.toString(),
                        null,
                        "the file was deleted while in use, by another program or because more"
                                + " handles than the world size were opened");
            }
            replay();
            return action.call();
        } finally {
            held.release();
        }
    }

    /** Applies records that were appended since the last call. The caller holds the lock. */
    private void replay() throws IOException {
        long size = channel.size();
        if (size < position) {
            throw new IOException("the file was truncated by another program");
        }
        if (size == position) {
            return;
        }
        // Not closed: that would close the channel.
        DataInputStream in =
                new DataInputStream(
                        new BufferedInputStream(
                                Channels.newInputStream(channel.position(position)), 1 << 16));
        while (size - position >= Integer.BYTES) {
            int length = in.readInt();
            if (length < 0) {
                throw new IOException("invalid record length " + length);
            }
            if (size - position - Integer.BYTES < length) {
                return;
            }
            closes += LogRecord.apply(in.readNBytes(length), values);
            position += Integer.BYTES + length;
        }
    }

    private void append(byte[] record) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocate(Integer.BYTES + record.length);
        buffer.putInt(record.length).put(record).flip();
        int length = buffer.remaining();
        try {
            channel.truncate(position);
            write(channel, buffer, position);
        } catch (IOException e) {
            // The map has the change but the file does not: replay from the file.
            values = new KeyValueMap();
            closes = 0;
            position = HEADER.length;
            throw e;
        }
        position += length;
    }

    private static void write(FileChannel channel, ByteBuffer buffer, long start)
            throws IOException {
        long at = start;
        while (buffer.hasRemaining()) {
            at += channel.write(buffer, at);
        }
    }

    private Void closeHandle(int worldSize, boolean last) throws Exception {
        try {
            locked(false, () -> countClose(worldSize));
        } catch (NoSuchFileException e) {
            logger.debug("FileStore {}: the file was deleted before it was closed", path, e);
        } finally {
            if (last) {
                channel.close();
            }
        }
        return null;
    }

    private Void countClose(int worldSize) throws IOException {
        LogRecord record = new LogRecord();
        record.close();
        append(record.toBytes());
        closes++;
        if (closes >= worldSize) {
            Files.delete(path);
        }
        return null;
    }

    private Object keyOfPath() throws IOException {
        try {
            return key(Files.readAttributes(path, BasicFileAttributes.class));
        } catch (NoSuchFileException e) {
            return null;
        }
    }

    /** Returns the file's identity (inode); always the same on systems without inode numbers. */
    private static Object key(BasicFileAttributes attributes) {
        return Objects.requireNonNullElse(attributes.fileKey(), "");
    }

    /** Runs code on the log's thread; interrupts of the caller do not cancel it. */
    private <T> T call(String operation, Callable<T> action) {
        CompletableFuture<T> result = new CompletableFuture<>();
        try {
            thread.execute(
                    () -> {
                        try {
                            result.complete(action.call());
                        } catch (Throwable e) {
                            result.completeExceptionally(e);
                        }
                    });
            return result.join();
        } catch (RejectedExecutionException e) {
            throw StoreErrors.closed("FileStore " + path, operation);
        } catch (CompletionException e) {
            if (e.getCause() instanceof IllegalArgumentException cause) {
                throw new IllegalArgumentException(cause.getMessage(), cause);
            }
            throw new CollectiveException(
                    "FileStore " + path + ": " + operation + ": " + e.getCause().getMessage(),
                    e.getCause());
        }
    }
}
