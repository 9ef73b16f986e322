// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import ai.djl.Device;
import com.sun.jna.LastErrorException;
import com.sun.jna.Pointer;
import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
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
    private static final long HUGE_PAGE = 2 << 20;

    private final Path path;
    private final int fd; // closed when the file is unmapped
    private final NativeMemory memory;

    private MappedFile(Path path, int fd, NativeMemory memory) {
        this.path = path;
        this.fd = fd;
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
        Required.argument("the path", path);
        if (Files.exists(path) && !Files.isRegularFile(path)) {
            throw new IOException(path + " is not a regular file");
        }
        int fd = -1;
        MappedFile file = null;
        try {
            fd = LibC.open(path.toString(), LibC.O_RDONLY | LibC.O_CLOEXEC | LibC.O_NONBLOCK);
            // The size of the open file, because the path may name another file by now.
            long byteSize = Files.size(Path.of("/proc/self/fd/" + fd));
            file = new MappedFile(path, fd, map(fd, byteSize));
            return file;
        } catch (LastErrorException e) {
            throw new IOException("cannot map the file " + path + ": " + e.getMessage(), e);
        } finally {
            if (file == null && fd >= 0) {
                LibC.close(fd);
            }
        }
    }

    private static NativeMemory map(int fd, long byteSize) {
        if (byteSize == 0) {
            // mmap(2) rejects length 0.
            return new NativeMemory(0, 0, Device.cpu(), () -> LibC.close(fd));
        }
        // Huge pages need an address that is a multiple of theirs, which tmpfs does not choose.
        int anonymous = LibC.MAP_PRIVATE | LibC.MAP_ANONYMOUS;
        long room = LibC.mmap(0, byteSize + HUGE_PAGE, LibC.PROT_READ, anonymous, -1, 0);
        LibC.munmap(room, byteSize + HUGE_PAGE);
        long first = (room + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        long address = LibC.mmap(first, byteSize, LibC.PROT_READ, LibC.MAP_PRIVATE, fd, 0);
        // The page cache reads ahead in pages as large as those of its first read.
        LibC.madvise(address, byteSize, LibC.MADV_HUGEPAGE);
        return new NativeMemory(
                address,
                byteSize,
                Device.cpu(),
                () -> {
                    LibC.munmap(address, byteSize);
                    LibC.close(fd);
                });
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

    /**
     * Copies bytes of the file to memory, as read(2) does: pages are not mapped, which takes longer
     * than copying small pages, and so does unmapping them. Thread-safe. May be called after {@link
     * #close()} while a view of the {@linkplain #memory() memory} is open.
     *
     * @throws IllegalArgumentException if the range is outside the file
     * @throws IllegalStateException if the file is unmapped
     * @throws UncheckedIOException if the bytes cannot be read, or were truncated after mapping
     */
    public void read(long offset, long length, long address) {
        requireRange(offset, length);
        memory.share(); // Keeps the descriptor open.
        try {
            long done = 0;
            while (done < length) {
                long count = LibC.pread(fd, address + done, length - done, offset + done);
                if (count == 0) {
                    throw new EOFException("it was truncated while it was open");
                }
                done += count;
            }
        } catch (EOFException | LastErrorException e) {
            throw new UncheckedIOException(
                    new IOException("cannot read the file " + path + ": " + e.getMessage(), e));
        } finally {
            memory.release();
        }
    }

    private void requireInside(long offset, long length) {
        if (memory.isClosed()) {
            throw new IllegalArgumentException("the mapped file " + path + " is closed");
        }
        requireRange(offset, length);
    }

    private void requireRange(long offset, long length) {
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
