/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.ReentrantLock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What processes, and the threads of each, hold one at a time, by a lock of a file. The operating
 * system releases it when its process ends, however that ends.
 *
 * <p>It saves work and guards nothing: where the file cannot be locked, or one that is stopped
 * holds it for too long, the caller goes on without it. The file is deleted by who has held it, so
 * that for a moment two processes may hold the lock of a file and of its successor.
 */
final class ProcessLock implements AutoCloseable {

    private static final Logger LOGGER = LoggerFactory.getLogger(ProcessLock.class);
    private static final long POLL_MILLIS = 10;

    // A process has a lock of a file or has not, whichever thread asks; and it loses it when any of
    // its threads closes the file.
    private static final Map<Path, ReentrantLock> THREADS = new ConcurrentHashMap<>();

    private final Path file;
    private final ReentrantLock threads;
    private final FileChannel channel; // null if the file is not locked

    private ProcessLock(Path file, ReentrantLock threads, FileChannel channel) {
        this.file = file;
        this.threads = threads;
        this.channel = channel;
    }

    /**
     * Waits for other threads, and for other processes up to a time.
     *
     * @param file the file to lock, which is created with its folder
     * @param most how long other processes are waited for
     * @return to be closed by the same thread
     */
    static ProcessLock acquire(Path file, Duration most) {
        ReentrantLock threads =
                THREADS.computeIfAbsent(
                        file.toAbsolutePath().normalize(), absent -> new ReentrantLock());
        threads.lock();
        return new ProcessLock(file, threads, lock(file, most));
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
            return false; // This process holds it, by another name of the file.
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
    boolean isHeld() {
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
            threads.unlock();
        }
    }
}
