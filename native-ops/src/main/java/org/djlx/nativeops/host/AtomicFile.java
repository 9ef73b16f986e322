// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Pattern;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A file that is written under a temporary name and renamed when it is complete, replacing an
 * existing one.
 *
 * <ul>
 *   <li>The temporary name, {@code .NAME.RANDOM.incomplete}, cannot be predicted, and the file must
 *       not exist: a symbolic link with that name is not followed.
 *   <li>The writer holds a lock on the temporary file. So {@link #sweep} tells files that are being
 *       written from those that a killed process has left.
 * </ul>
 *
 * <p>Used by one thread.
 */
public final class AtomicFile implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(AtomicFile.class);
    private static final String INCOMPLETE = ".incomplete";
    private static final int LOCK_ATTEMPTS = 100;
    private static final long PROBE_NANOS = 1_000_000; // more than a probe takes

    private final Path target;
    private final Path temporary;
    private final FileChannel channel;

    private AtomicFile(Path target) throws IOException {
        this.target = target;
        temporary =
                target.resolveSibling(
                        "." + target.getFileName() + "." + UUID.randomUUID() + INCOMPLETE);
        channel =
                FileChannel.open(
                        temporary,
                        StandardOpenOption.CREATE_NEW,
                        StandardOpenOption.WRITE,
                        LinkOption.NOFOLLOW_LINKS);
        try {
            for (int i = 0; i < LOCK_ATTEMPTS && !tryLock(channel); i++) {
                LockSupport.parkNanos(PROBE_NANOS);
            }
        } catch (IOException e) {
            logger.debug("no locks in the file system of {}", target, e);
        }
    }

    /** Fails also while {@link #isLocked} of this or another process holds the lock, to ask. */
    private static boolean tryLock(FileChannel channel) throws IOException {
        try {
            return channel.tryLock() != null;
        } catch (OverlappingFileLockException e) {
            return false; // Of this JVM.
        }
    }

    /**
     * Creates the temporary file, after {@link #sweep} of those of the same name; the caller closes
     * it. Throws IOException if it cannot be created, or is being written.
     */
    public static AtomicFile create(Path file) throws IOException {
        Path target = file.toAbsolutePath();
        sweep(target.getParent(), Pattern.quote(target.getFileName().toString()));
        return new AtomicFile(target);
    }

    /**
     * Deletes the incomplete files that killed processes have left in a directory, by a regular
     * expression of the names that they would have had; throws IOException if such a file is being
     * written.
     */
    public static void sweep(Path directory, String names) throws IOException {
        try (DirectoryStream<Path> files = incomplete(directory, names)) {
            for (Path file : files) {
                if (isLocked(file)) {
                    throw new IOException(
                            String.format(
                                    "another job is writing %s; give each job a directory of its"
                                            + " own",
                                    file));
                }
                Files.deleteIfExists(file);
            }
        }
    }

    /** Returns whether a process is writing a file. False if the file system has no locks. */
    public static boolean isBeingWritten(Path file) {
        String name = Pattern.quote(file.getFileName().toString());
        boolean locked = false;
        try (DirectoryStream<Path> files = incomplete(file.getParent(), name)) {
            for (Path each : files) {
                locked |= isLocked(each);
            }
        } catch (IOException e) {
            logger.debug("no locks in the file system of {}", file, e);
        }
        return locked;
    }

    private static DirectoryStream<Path> incomplete(Path directory, String names)
            throws IOException {
        Pattern incomplete =
                Pattern.compile(
                        "\\.(?:" + names + ")(\\.[-0-9a-f]{36})?" + Pattern.quote(INCOMPLETE));
        return Files.newDirectoryStream(
                directory, file -> incomplete.matcher(file.getFileName().toString()).matches());
    }

    private static boolean isLocked(Path file) throws IOException {
        if (!Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS)) {
            return false;
        }
        try (FileChannel channel =
                        FileChannel.open(
                                file, StandardOpenOption.WRITE, LinkOption.NOFOLLOW_LINKS);
                FileLock lock = channel.tryLock()) {
            return lock == null;
        } catch (OverlappingFileLockException e) {
            return true; // Of this JVM.
        } catch (NoSuchFileException e) {
            return false; // Complete meanwhile.
        }
    }

    public FileChannel channel() {
        return channel;
    }

    public void write(ByteBuffer bytes) throws IOException {
        FileWrites.naming(
                target,
                () -> {
                    while (bytes.hasRemaining()) {
                        channel.write(bytes);
                    }
                });
    }

    public void force() throws IOException {
        FileWrites.naming(target, () -> channel.force(true));
    }

    /** Renames the file, which is complete. */
    public void commit() throws IOException {
        try {
            Files.move(temporary, target, StandardCopyOption.ATOMIC_MOVE);
        } catch (NoSuchFileException e) {
            throw new IOException(
                    String.format(
                            "%s was deleted while it was written: another job writes %s, too; give"
                                    + " each job a directory of its own",
                            temporary, target),
                    e);
        }
    }

    /** Closes the file, and deletes it if it has not been committed. */
    @Override
    public void close() throws IOException {
        try {
            Files.deleteIfExists(temporary);
        } finally {
            channel.close();
        }
    }
}
