// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.LastErrorException;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.time.Duration;

/**
 * An exclusive {@code flock(2)} on a file, between threads and processes. Python's filelock takes
 * the same lock; the locks of {@link java.nio.channels.FileChannel} are of another kind, which
 * flock does not see. The system releases the lock when the process ends.
 */
public final class Flock implements AutoCloseable {

    private static final long POLL_MILLIS = 10;

    private final Descriptor descriptor;

    private Flock(Descriptor descriptor) {
        this.descriptor = descriptor;
    }

    /**
     * Takes the lock if it is free, without waiting. Creates the file, whose directory exists;
     * {@link #close} leaves it there.
     *
     * @return the lock, to be closed; null if another thread or process holds it
     */
    public static Flock tryAcquire(Path file) throws IOException {
        try {
            Files.createFile(file);
        } catch (FileAlreadyExistsException e) {
            // Of an earlier holder.
        }
        Descriptor descriptor;
        try {
            descriptor = new Descriptor(LibC.open(file.toString(), LibC.O_RDWR | LibC.O_CLOEXEC));
        } catch (LastErrorException e) {
            if (e.getErrorCode() == LibC.ENOENT) {
                return null; // Its holder has deleted it meanwhile.
            }
            throw new IOException("cannot open the lock file " + file + ": " + e.getMessage(), e);
        }
        boolean held = false;
        try {
            LibC.flock(descriptor.number(), LibC.LOCK_EX | LibC.LOCK_NB);
            held = isAt(file, descriptor);
        } catch (LastErrorException e) {
            if (e.getErrorCode() != LibC.EAGAIN) {
                throw new IOException("cannot lock " + file + ": " + e.getMessage(), e);
            }
        } finally {
            if (!held) {
                descriptor.close();
            }
        }
        return held ? new Flock(descriptor) : null;
    }

    /** As {@link #tryAcquire}, but waits for the lock up to a timeout. */
    public static Flock acquire(Path file, Duration timeout)
            throws IOException, InterruptedException {
        Deadline deadline = Deadline.after(timeout);
        Flock lock = tryAcquire(file);
        while (lock == null && !deadline.isOver()) {
            Thread.sleep(POLL_MILLIS);
            lock = tryAcquire(file);
        }
        return lock;
    }

    /** Returns whether the locked file is still the one at the path: its holder may delete it. */
    private static boolean isAt(Path file, Descriptor descriptor) throws IOException {
        try {
            return Files.isSameFile(file, Path.of("/proc/self/fd/" + descriptor.number()));
        } catch (NoSuchFileException e) {
            return false;
        }
    }

    /** Releases the lock. Idempotent. */
    @Override
    public void close() {
        descriptor.close();
    }
}
