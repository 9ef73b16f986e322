/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.host;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import com.sun.jna.LastErrorException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Pattern;

/**
 * Memory that processes of one host share.
 *
 * <p>It is an anonymous file (memfd_create(2)), mapped by everyone who opens it. As it never has a
 * name, nothing is left behind in /dev/shm however its processes end, and the size limit of a
 * container's /dev/shm does not apply. Others open it through {@link #path()} for as long as its
 * creator has not called {@link #seal()}; they must run as the same user and see the same process
 * ids.
 */
public final class SharedMemory implements AutoCloseable {

    private static final int ENOMEM = 12;

    /** How {@link #path()} looks. */
    private static final Pattern PATH = Pattern.compile("/proc/[0-9]+/fd/[0-9]+");

    /** Its size is fixed, so that no access can lie behind the end, and this cannot be undone. */
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
     * Creates memory filled with zeros. Pages take up room from their first use on.
     *
     * @param name what tools such as pmap(1) show; need not be unique
     * @param byteSize the size in bytes
     * @return the memory
     * @throws EngineException if the system refuses
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
     * <p>The path may come from somebody who is not to be trusted: whatever it leads to other than
     * such memory, of this user and of this size, is neither mapped nor changed.
     *
     * @param path its {@link #path()}
     * @param byteSize its size in bytes
     * @return the memory
     * @throws EngineException if it cannot be opened, or is something else
     */
    public static SharedMemory open(String path, long byteSize) {
        int fd = -1;
        try {
            checkLink(path);
            // Were it something else after all, opening it would not wait for anything.
            fd = LibC.open(path, LibC.O_RDWR | LibC.O_CLOEXEC | LibC.O_NONBLOCK | LibC.O_NOCTTY);
            checkFile(path, fd, byteSize);
            SharedMemory shared = new SharedMemory(fd, byteSize);
            shared.seal();
            return shared;
        } catch (LastErrorException | IOException e) {
            closeQuietly(fd);
            throw new EngineException(
                    "cannot open the shared memory "
                            + path
                            + " ("
                            + e.getMessage()
                            + "): "
                            + remedy(e, byteSize),
                    e);
        } catch (EngineException e) {
            closeQuietly(fd);
            throw e;
        }
    }

    private static void checkLink(String path) throws IOException {
        if (path == null || !PATH.matcher(path).matches()) {
            throw refusal(path, "it is not the path of a process's descriptor");
        }
        String target = Files.readSymbolicLink(Path.of(path)).toString();
        if (!target.startsWith("/memfd:")) {
            throw refusal(path, "it leads to " + target + ", which is no shared memory");
        }
    }

    /** Checks the open file itself: what the path leads to may have changed meanwhile. */
    private static void checkFile(String path, int fd, long byteSize) throws IOException {
        int seals;
        try {
            seals = LibC.fcntl(fd, LibC.F_GET_SEALS, 0);
        } catch (LastErrorException e) {
            throw refusal(path, "it is no shared memory");
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
                "refused to map "
                        + path
                        + " as shared memory: "
                        + why
                        + ". Whoever gave this path is not a rank of this group, or runs another"
                        + " version of this library");
    }

    /**
     * Returns where others of this host open the memory.
     *
     * @return the path
     */
    public String path() {
        if (fd < 0) {
            throw new IllegalStateException(
                    "this shared memory is sealed or was opened, not created");
        }
        return "/proc/" + ProcessHandle.current().pid() + "/fd/" + fd;
    }

    /** Ends the time in which others can open the memory. Idempotent. */
    public synchronized void seal() {
        closeQuietly(fd);
        fd = -1;
    }

    /**
     * Returns the mapped memory.
     *
     * @return the memory; unmapped after {@link #close()}, when its last view is closed
     */
    public NativeMemory memory() {
        return memory;
    }

    /**
     * Copies bytes between addresses of this process that must not overlap; memcpy(3).
     *
     * @param destination where to
     * @param source where from
     * @param byteSize how many
     */
    public static void copy(long destination, long source, long byteSize) {
        LibC.memcpy(destination, source, byteSize);
    }

    /** Gives the mapping up; it goes when the last array that views it is closed. Idempotent. */
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
                // Nothing was written through the descriptor, so nothing can be lost.
            }
        }
    }

    private static String remedy(Exception e, long byteSize) {
        if (e instanceof LastErrorException error && error.getErrorCode() == ENOMEM) {
            return "this process has no room for "
                    + byteSize
                    + " more bytes of addresses. Ranks that are threads need them each: take"
                    + " processes, fewer ranks, or smaller buffers";
        }
        return "its creator must be alive, on this host, of the same user and in the same PID"
                + " namespace";
    }
}
