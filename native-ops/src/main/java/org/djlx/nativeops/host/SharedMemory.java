// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import com.sun.jna.LastErrorException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Pattern;

/**
 * Memory shared by processes of one host.
 *
 * <p>It is an anonymous file (memfd_create(2)) that each process maps. The memory has no name. So
 * no file stays in /dev/shm when the processes end, even if they crash, and the size limit of a
 * container's /dev/shm does not apply. Other processes open it through {@link #path()} until its
 * creator calls {@link #seal()}. They must run as the same user and in the same PID namespace.
 */
public final class SharedMemory implements AutoCloseable {

    private static final int ENOMEM = 12;

    /** The form of {@link #path()}. */
    private static final Pattern PATH = Pattern.compile("/proc/[0-9]+/fd/[0-9]+");

    /** The seals that fix the size: no process can shrink the memory while others access it. */
    private static final int SEALS = LibC.F_SEAL_SEAL | LibC.F_SEAL_SHRINK | LibC.F_SEAL_GROW;

    private final NativeMemory memory;
    private int fd;

    private SharedMemory(int fd, long byteSize) {
        this.fd = fd;
        long address = LibC.mmap(0, byteSize, LibC.PROT_READ_WRITE, LibC.MAP_SHARED, fd, 0);
        memory =
                new NativeMemory(
                        address, byteSize, Device.cpu(), () -> LibC.munmap(address, byteSize));
    }

    /**
     * Creates memory filled with zeros, which the caller closes. Pages are allocated on first use.
     * The name, which need not be unique, shows in tools such as pmap(1). Throws EngineException if
     * the system refuses.
     */
    public static SharedMemory create(String name, long byteSize) {
        if (byteSize <= 0) {
            throw new IllegalArgumentException("the size must be positive: " + byteSize);
        }
        int fd = -1;
        try {
            fd = LibC.memfd_create(name, LibC.MFD_CLOEXEC | LibC.MFD_ALLOW_SEALING);
            LibC.ftruncate(fd, byteSize);
            LibC.fcntl(fd, LibC.F_ADD_SEALS, SEALS);
            return new SharedMemory(fd, byteSize);
        } catch (LastErrorException e) {
            closeQuietly(fd);
            throw new EngineException(
                    "cannot create " + byteSize + " bytes of shared memory: " + e.getMessage(), e);
        }
    }

    /**
     * Maps memory that another thread or process created.
     *
     * <p>The path need not be trusted. A file is mapped only if it is shared memory created by this
     * class, of this user and of this size; any other file is not changed.
     *
     * @return the memory; the caller closes it
     * @throws EngineException if the path cannot be opened, or is not memory that this class
     *     created
     */
    public static SharedMemory open(String path, long byteSize) {
        int fd = -1;
        try {
            checkLink(path);
            // O_NONBLOCK and O_NOCTTY, in case the path names a device or a pipe.
            fd = LibC.open(path, LibC.O_RDWR | LibC.O_CLOEXEC | LibC.O_NONBLOCK | LibC.O_NOCTTY);
            checkFile(path, fd, byteSize);
            SharedMemory shared = new SharedMemory(fd, byteSize);
            shared.seal();
            return shared;
        } catch (LastErrorException | IOException e) {
            closeQuietly(fd);
            throw new EngineException(
                    "cannot open the shared memory %s (%s): %s"
                            .formatted(path, e.getMessage(), remedy(e, byteSize)),
                    e);
        } catch (EngineException e) {
            closeQuietly(fd);
            throw e;
        }
    }

    private static void checkLink(String path) throws IOException {
        if (path == null || !PATH.matcher(path).matches()) {
            throw refusal(path, "it is not of the form /proc/<pid>/fd/<number>");
        }
        String target = Files.readSymbolicLink(Path.of(path)).toString();
        if (!target.startsWith("/memfd:")) {
            throw refusal(path, "it links to " + target + ", which is not shared memory");
        }
    }

    /** Checks the open file itself, because the path may link to another file by now. */
    private static void checkFile(String path, int fd, long byteSize) throws IOException {
        int seals;
        try {
            seals = LibC.fcntl(fd, LibC.F_GET_SEALS, 0);
        } catch (LastErrorException e) {
            throw refusal(path, "it is not shared memory");
        }
        if (seals != SEALS) {
            throw refusal(path, "its seals are " + seals + ", not " + SEALS);
        }
        Path file = Path.of("/proc/self/fd/" + fd);
        long found = Files.size(file);
        if (found != byteSize) {
            throw refusal(path, "it has " + found + " bytes, not " + byteSize);
        }
        int owner = (Integer) Files.getAttribute(file, "unix:uid");
        if (owner != LibC.geteuid()) {
            throw refusal(path, "it belongs to user " + owner + ", not to " + LibC.geteuid());
        }
    }

    private static EngineException refusal(String path, String why) {
        return new EngineException(
                ("refused to map %s as shared memory: %s. The path does not come from a rank of"
                                + " this group, or that rank has another version of this library")
                        .formatted(path, why));
    }

    /** {@return the path for {@link #open}} */
    public String path() {
        if (fd < 0) {
            throw new IllegalStateException(
                    "this shared memory is sealed or was opened, not created");
        }
        return "/proc/" + ProcessHandle.current().pid() + "/fd/" + fd;
    }

    /** Closes the descriptor, after which other processes cannot open the memory. Idempotent. */
    public synchronized void seal() {
        closeQuietly(fd);
        fd = -1;
    }

    /**
     * {@return the mapped memory; unmapped after {@link #close()} and after its last view is
     * closed}
     */
    public NativeMemory memory() {
        return memory;
    }

    /** Copies bytes with memcpy(3). The ranges must not overlap. */
    public static void copy(long destination, long source, long byteSize) {
        LibC.memcpy(destination, source, byteSize);
    }

    /**
     * Releases the mapping. It is unmapped when the last array that views it is closed. Idempotent.
     */
    @Override
    public void close() {
        seal();
        memory.close();
    }

    private static void closeQuietly(int fd) {
        if (fd >= 0) {
            try {
                LibC.close(fd);
            } catch (LastErrorException e) {
                // Nothing was written to the descriptor, so no data can be lost.
            }
        }
    }

    private static String remedy(Exception e, long byteSize) {
        if (e instanceof LastErrorException error && error.getErrorCode() == ENOMEM) {
            return "this process has no room for "
                    + byteSize
                    + " more bytes of address space. Each rank that is a thread maps them: use"
                    + " processes, fewer ranks, or smaller buffers";
        }
        return "the process that created it must be alive, on this host, of the same user and in"
                + " the same PID namespace";
    }
}
