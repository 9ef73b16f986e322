// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.channels.FileLockInterruptionException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.time.Duration;
import java.util.Arrays;
import java.util.Objects;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.store.KeyValueMap;
import org.djlx.collectives.internal.store.StoreChecks;
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
    private static final byte[] HEADER = "DJLSTOR1".getBytes(StandardCharsets.US_ASCII);

    // A file lock belongs to the process, and ends when any of its channels on the file is closed.
    private static final ReentrantLock PROCESS = new ReentrantLock();

    private final Path path;
    private final int worldSize;

    // Guarded by PROCESS.
    private Object fileKey; // identity of the file; null until it is opened
    private Log log = new Log();

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
                    log.close();
                    log.appendTo(file);
                    if (log.closes >= worldSize) {
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
                        checkHeader(file);
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
                log = new Log(); // It may have changes that the file does not have.
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

    private static void checkHeader(RandomAccessFile file) throws IOException {
        byte[] start = new byte[(int) Math.min(HEADER.length, file.length())];
        file.readFully(start);
        if (!Arrays.equals(start, Arrays.copyOf(HEADER, start.length))) {
            throw new IOException(
                    "the file is not a FileStore; it was not changed; choose another path");
        }
        if (start.length < HEADER.length) {
            file.seek(0);
            file.write(HEADER);
        }
    }

    private CollectiveException failure(String operation, IOException e) {
        return new CollectiveException(this + ": " + operation + ": " + e.getMessage(), e);
    }

    @Override
    public String toString() {
        return "FileStore " + path;
    }

    /**
     * The keys and values, as the file's records have made them. Each record is one atomic change.
     * A process that is killed while it appends leaves an incomplete record at the end, which
     * readers ignore and the next writer cuts off. Layout, big-endian:
     *
     * <pre>
     * int32 length of what follows
     * { int8 1 | int32 key length | key in UTF-8 | int32 value length | value }   a key is set
     * { int8 2 | int32 key length | key in UTF-8 | int32 value length | value }   a value is appended
     * { int8 3 | int32 key length | key in UTF-8 }                                a key is deleted
     * { int8 4 }                                                                  a handle is closed
     * { int8 5 | int32 name length | name in UTF-8 | int32 value length | value } a value is pushed
     * { int8 6 | int32 name length | name in UTF-8 }                              a value is popped
     * </pre>
     */
    private static final class Log extends KeyValueMap {

        private static final int PUT = 1;
        private static final int APPEND = 2;
        private static final int DELETE = 3;
        private static final int CLOSE = 4;
        private static final int PUSH = 5;
        private static final int POP = 6;

        private final ByteBuf record = Unpooled.buffer(); // of changes that are not in the file
        private long position = HEADER.length;
        private int closes;

        @Override
        public void set(String key, byte[] value) {
            super.set(key, value);
            write(PUT, key);
            write(value);
        }

        @Override
        public void append(String key, byte[] tail) {
            int start = record.writerIndex();
            super.append(key, tail);
            record.writerIndex(start); // The tail instead of the whole value.
            write(APPEND, key);
            write(tail);
        }

        @Override
        public boolean delete(String key) {
            boolean wasSet = super.delete(key);
            if (wasSet) {
                write(DELETE, key);
            }
            return wasSet;
        }

        @Override
        public void push(String queue, byte[] value) {
            super.push(queue, value);
            write(PUSH, queue);
            write(value);
        }

        @Override
        public byte[] pop(String queue) {
            byte[] value = super.pop(queue);
            write(POP, queue);
            return value;
        }

        void close() {
            closes++;
            record.writeByte(CLOSE);
        }

        private void write(int what, String key) {
            record.writeByte(what);
            write(key.getBytes(StandardCharsets.UTF_8));
        }

        private void write(byte[] bytes) {
            record.writeInt(bytes.length).writeBytes(bytes);
        }

        /** Appends the changes since the last replay, as one record. */
        void appendTo(RandomAccessFile file) throws IOException {
            int length = record.readableBytes();
            if (length > 0) {
                ByteBuf framed = Unpooled.buffer(Integer.BYTES + length);
                file.setLength(position);
                file.seek(position);
                file.write(ByteBufUtil.getBytes(framed.writeInt(length).writeBytes(record)));
                position += Integer.BYTES + length;
            }
            record.clear();
        }

        /** Applies the records that other handles have appended. */
        void replay(RandomAccessFile file) throws IOException {
            long size = file.length();
            if (size < position) {
                throw new IOException("the file was truncated by another program");
            }
            byte[] tail = new byte[Math.toIntExact(size - position)];
            file.seek(position);
            file.readFully(tail);
            ByteBuf in = Unpooled.wrappedBuffer(tail);
            while (in.readableBytes() >= Integer.BYTES) {
                int length = in.readInt();
                if (length < 0) {
                    throw new IOException("invalid record length " + length);
                }
                if (length > in.readableBytes()) {
                    break;
                }
                apply(in.readSlice(length));
                position += Integer.BYTES + length;
            }
            record.clear();
        }

        private void apply(ByteBuf in) throws IOException {
            try {
                while (in.isReadable()) {
                    int what = in.readByte();
                    switch (what) {
                        case PUT -> set(readKey(in), readBytes(in));
                        case APPEND -> append(readKey(in), readBytes(in));
                        case DELETE -> delete(readKey(in));
                        case CLOSE -> closes++;
                        case PUSH -> push(readKey(in), readBytes(in));
                        case POP -> pop(nonEmpty(readKey(in)));
                        default -> throw new IOException("unknown record kind " + what);
                    }
                }
            } catch (IndexOutOfBoundsException | NegativeArraySizeException e) {
                throw new IOException("a record is cut off", e);
            }
        }

        private String nonEmpty(String queue) throws IOException {
            if (queueLength(queue) == 0) {
                throw new IOException("a record pops from an empty queue");
            }
            return queue;
        }

        private static String readKey(ByteBuf in) {
            return new String(readBytes(in), StandardCharsets.UTF_8);
        }

        private static byte[] readBytes(ByteBuf in) {
            byte[] bytes = new byte[Math.min(in.readInt(), in.readableBytes() + 1)];
            in.readBytes(bytes);
            return bytes;
        }
    }
}
