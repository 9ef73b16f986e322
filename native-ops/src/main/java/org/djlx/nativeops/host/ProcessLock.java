// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A lock between processes, on a file. The operating system releases it when the process ends, also
 * after a crash.
 *
 * <p>The lock saves duplicate work; it does not guarantee exclusion:
 *
 * <ul>
 *   <li>If the file cannot be locked, or another process holds the lock longer than the caller
 *       waits, the caller continues without the lock.
 *   <li>The holder deletes the file, so two processes may briefly hold locks on the old and the new
 *       file.
 *   <li>A process loses the lock if another of its threads waits for the lock until the timeout.
 * </ul>
 */
public final class ProcessLock implements AutoCloseable {

    private static final Logger LOGGER = LoggerFactory.getLogger(ProcessLock.class);
    private static final long POLL_MILLIS = 10;

    private final Path file;
    private final FileChannel channel; // null if the file is not locked

    private ProcessLock(Path file, FileChannel channel) {
        this.file = file;
        this.channel = channel;
    }

    /**
     * Acquires the lock of a file, which is created with its folder, or returns after a timeout.
     * The caller closes the lock, whether it {@linkplain #isHeld is held} or not.
     */
    public static ProcessLock acquire(Path file, Duration timeout) {
        return new ProcessLock(file, lock(file, timeout));
    }

    private static FileChannel lock(Path file, Duration timeout) {
        FileChannel channel = null;
        boolean locked = false;
        try {
            Files.createDirectories(file.toAbsolutePath().getParent());
            channel = FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
            long end = System.nanoTime() + timeout.toNanos();
            locked = tryLock(channel);
            while (!locked && System.nanoTime() - end < 0) {
                Thread.sleep(POLL_MILLIS);
                locked = tryLock(channel);
            }
        } catch (IOException e) {
            LOGGER.debug("cannot lock {}", file, e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        if (!locked) {
            close(channel);
            return null;
        }
        return channel;
    }

    /** Tries to lock the file, without waiting. */
    private static boolean tryLock(FileChannel channel) throws IOException {
        try {
            return channel.tryLock() != null;
        } catch (OverlappingFileLockException e) {
            return false; // Another thread of this process holds the lock.
        }
    }

    private static void close(FileChannel channel) {
        try {
            if (channel != null) {
                channel.close();
            }
        } catch (IOException e) {
            LOGGER.debug("cannot close a locked file", e);
        }
    }

    public boolean isHeld() {
        return channel != null;
    }

    @Override
    public void close() {
        try {
            if (channel != null) {
                Files.deleteIfExists(file);
            }
        } catch (IOException e) {
            LOGGER.debug("cannot delete {}", file, e);
        } finally {
            close(channel);
        }
    }
}
