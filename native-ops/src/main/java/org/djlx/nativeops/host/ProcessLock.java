/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
 * What one process holds at a time, by a lock of a file. The operating system releases it when the
 * process ends, however that ends.
 *
 * <p>It saves work and guards nothing: where the file cannot be locked, or one that is stopped
 * holds it for too long, the caller goes on without it. The file is deleted by who has held it, so
 * that for a moment two processes may hold the lock of a file and of its successor; and a process
 * loses it when another of its threads has waited for it in vain.
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
     * Waits for others up to a time.
     *
     * @param file the file to lock, which is created with its folder
     * @param most how long they are waited for
     * @return to be closed, whether it is held or not
     */
    public static ProcessLock acquire(Path file, Duration most) {
        return new ProcessLock(file, lock(file, most));
    }

    private static FileChannel lock(Path file, Duration most) {
        FileChannel channel = null;
        boolean locked = false;
        try {
            Files.createDirectories(file.toAbsolutePath().getParent());
            channel = FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
            long end = System.nanoTime() + most.toNanos();
            locked = isLocked(channel);
            while (!locked && System.nanoTime() - end < 0) {
                Thread.sleep(POLL_MILLIS);
                locked = isLocked(channel);
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

    /** Never waits. */
    private static boolean isLocked(FileChannel channel) throws IOException {
        try {
            return channel.tryLock() != null;
        } catch (OverlappingFileLockException e) {
            return false; // Another thread of this process holds it.
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

    /** Whether the file is locked. */
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
