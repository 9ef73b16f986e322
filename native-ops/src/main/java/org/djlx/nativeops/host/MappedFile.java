// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import ai.djl.Device;
import com.sun.jna.LastErrorException;
import com.sun.jna.Pointer;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * A read-only mapping of a file of any size. Pages are read on first access, and the system may
 * drop them again, so the mapping takes address space but no memory.
 *
 * <p>Unlike Java's mapped buffers, a mapping may be larger than 2 GiB, and is unmapped when it is
 * closed. Writing to the memory, or reading a part that was truncated after mapping, ends the
 * process.
 */
public final class MappedFile implements AutoCloseable {

    private static final long PAGE = 4096;

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
     * @return the mapping; the caller closes it
     * @throws IOException if the file cannot be opened or mapped
     */
    public static MappedFile open(Path path) throws IOException {
        if (path == null) {
            throw new IllegalArgumentException("the path is null");
        }
        if (Files.exists(path) && !Files.isRegularFile(path)) {
            throw new IOException(path + " is not a regular file");
        }
        int fd = -1;
        try {
            fd = LibC.open(path.toString(), LibC.O_RDONLY | LibC.O_CLOEXEC | LibC.O_NONBLOCK);
            // The size of the open file, because the path may name another file by now.
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
            return new NativeMemory(0, 0, Device.cpu(), () -> {}); // mmap(2) rejects length 0.
        }
        long address = LibC.mmap(0, byteSize, LibC.PROT_READ, LibC.MAP_PRIVATE, fd, 0);
        return new NativeMemory(
                address, byteSize, Device.cpu(), () -> LibC.munmap(address, byteSize));
    }

    /**
     * {@return the mapped memory, which must not be written; unmapped after {@link #close()} and
     * after its last view is closed}
     */
    public NativeMemory memory() {
        return memory;
    }

    /**
     * Copies bytes of the file. Thread-safe, but must not be called after {@link #close()}.
     *
     * @param offset the offset in the file
     * @param bytes the destination, filled completely
     * @throws IllegalArgumentException if the range is outside the file, or the mapping is closed
     */
    public void read(long offset, byte[] bytes) {
        if (bytes == null) {
            throw new IllegalArgumentException("the bytes are null");
        }
        requireInside(offset, bytes.length);
        new Pointer(memory.address() + offset).read(0, bytes, 0, bytes.length);
    }

    private void requireInside(long offset, long length) {
        if (memory.isClosed()) {
            throw new IllegalArgumentException("the mapped file " + path + " is closed");
        }
        if (offset < 0 || length < 0 || offset > memory.byteSize() - length) {
            throw new IllegalArgumentException(
                    String.format(
                            "%d bytes at offset %d are outside of %s, which has %d bytes",
                            length, offset, path, memory.byteSize()));
        }
    }

    /**
     * Reads all pages of a range into memory at once; does nothing on Linux before 5.14. Reading a
     * page that is not mapped costs a fault, which takes longer than copying the page.
     *
     * @param offset the offset in the file
     * @param length the length in bytes
     * @throws IllegalArgumentException if the range is outside the file, or the mapping is closed
     */
    public void populate(long offset, long length) {
        advise(offset, length, LibC.MADV_POPULATE_READ);
    }

    /**
     * Gives back the pages of a range, with the arguments of {@link #populate}. A later read maps
     * them again.
     */
    public void evict(long offset, long length) {
        advise(offset, length, LibC.MADV_DONTNEED);
    }

    private void advise(long offset, long length, int advice) {
        requireInside(offset, length);
        long first = offset / PAGE * PAGE;
        LibC.madvise(memory.address() + first, offset + length - first, advice);
    }

    /**
     * Releases the mapping. The file is unmapped when the last array that views it is closed.
     * Idempotent.
     */
    @Override
    public void close() {
        memory.close();
    }
}
