/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.host;

import ai.djl.Device;
import com.sun.jna.LastErrorException;
import com.sun.jna.Pointer;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * A file as memory of this process, of any size and read-only: nothing is read before it is used,
 * and the system may drop it again, so it needs addresses and no memory.
 *
 * <p>Unlike Java's mapped buffers it may have more than 2 GiB, and goes when it is closed. Writing
 * to the memory, or reading what somebody has cut off the file since, ends the process.
 */
public final class MappedFile implements AutoCloseable {

    private final Path path;
    private final NativeMemory memory;

    private MappedFile(Path path, NativeMemory memory) {
        this.path = path;
        this.memory = memory;
    }

    /**
     * Maps a file.
     *
     * @param path a regular file, or a link to one
     * @return the file
     * @throws IOException if it cannot be opened or mapped
     */
    public static MappedFile open(Path path) throws IOException {
        if (path == null) {
            throw new IllegalArgumentException("the path is null");
        }
        if (Files.exists(path) && !Files.isRegularFile(path)) {
            throw new IOException(path + " is not a file");
        }
        int fd = -1;
        try {
            fd = LibC.open(path.toString(), LibC.O_RDONLY | LibC.O_CLOEXEC | LibC.O_NONBLOCK);
            // The size of what is open: the path may lead elsewhere by now.
            long byteSize = Files.size(Path.of("/proc/self/fd/" + fd));
            return new MappedFile(path, map(fd, byteSize));
        } catch (LastErrorException e) {
            throw new IOException("cannot map the file " + path + ": " + e.getMessage(), e);
        } finally {
            if (fd >= 0) {
                LibC.close(fd);
            }
        }
    }

    private static NativeMemory map(int fd, long byteSize) {
        if (byteSize == 0) {
            return new NativeMemory(0, 0, Device.cpu(), () -> {}); // mmap(2) refuses it.
        }
        long address = LibC.mmap(0, byteSize, LibC.PROT_READ, LibC.MAP_PRIVATE, fd, 0);
        return new NativeMemory(
                address, byteSize, Device.cpu(), () -> LibC.munmap(address, byteSize));
    }

    /**
     * Returns the file's bytes.
     *
     * @return the memory, which must not be written; unmapped after {@link #close()}, when its last
     *     view is closed
     */
    public NativeMemory memory() {
        return memory;
    }

    /**
     * Copies bytes of the file. May be called by several threads, and not after {@link #close()}.
     *
     * @param offset where the first one is
     * @param bytes where they go; all are filled
     * @throws IllegalArgumentException if the file does not have as many there, or is closed
     */
    public void read(long offset, byte[] bytes) {
        if (memory.isClosed()) {
            throw new IllegalArgumentException("the mapped file " + path + " is closed");
        }
        if (bytes == null) {
            throw new IllegalArgumentException("the bytes are null");
        }
        if (offset < 0 || offset > memory.byteSize() - bytes.length) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s has %d bytes, and not %d at offset %d",
                            path, memory.byteSize(), bytes.length, offset));
        }
        new Pointer(memory.address() + offset).read(0, bytes, 0, bytes.length);
    }

    /** Gives the mapping up; it goes when the last array that views it is closed. Idempotent. */
    @Override
    public void close() {
        memory.close();
    }
}
