// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.LastErrorException;
import com.sun.jna.Native;
import com.sun.jna.Platform;

/** The functions of the C library for mapped memory, descriptors and threads. Linux only. */
public final class LibC {

    static final int PROT_READ = 0x1;

    /** mmap: pages may be read and written. */
    public static final int PROT_READ_WRITE = 0x1 | 0x2;

    /** mmap: pages may be read and executed. */
    public static final int PROT_READ_EXEC = 0x1 | 0x4;

    static final int MAP_SHARED = 0x1;

    /** mmap: writes are not visible to other processes. */
    public static final int MAP_PRIVATE = 0x2;

    /** mmap: the mapping has no file. */
    public static final int MAP_ANONYMOUS = 0x20;

    static final int MADV_DONTNEED = 4;
    static final int MADV_HUGEPAGE = 14;
    static final int MADV_POPULATE_READ = 22;

    /** memfd_create: closed on exec. */
    public static final int MFD_CLOEXEC = 0x1;

    static final int AF_UNIX = 1;
    static final int SOCK_DGRAM_CLOEXEC = 2 | 02000000;
    static final int SOL_SOCKET = 1;
    static final int SCM_RIGHTS = 1;
    static final int SHUT_RDWR = 2;
    static final int MSG_CTRUNC = 0x8;
    static final int MSG_TRUNC = 0x20;
    static final int MSG_DONTWAIT = 0x40;
    static final int MSG_NOSIGNAL = 0x4000;
    static final int MSG_CMSG_CLOEXEC = 0x40000000;
    static final int POLLIN = 0x1;
    static final int POLLOUT = 0x4;
    static final int ENOENT = 2;
    static final int EINTR = 4;
    static final int EAGAIN = 11;
    static final int EPIPE = 32;
    static final int ECONNREFUSED = 111;
    static final int MFD_ALLOW_SEALING = 0x2;
    static final int O_RDONLY = 0;
    static final int O_RDWR = 02;
    static final int O_NOCTTY = 0400;
    static final int O_NONBLOCK = 04000;
    static final int O_CLOEXEC = 02000000;
    static final int F_ADD_SEALS = 1033;
    static final int F_GET_SEALS = 1034;
    static final int F_SEAL_SEAL = 0x1;
    static final int F_SEAL_SHRINK = 0x2;
    static final int F_SEAL_GROW = 0x4;
    static final int LOCK_EX = 2;
    static final int LOCK_NB = 4;
    static final int FUTEX_WAIT = 0;
    static final int FUTEX_WAKE = 1;

    private static final long SYS_FUTEX = Platform.isARM() ? 98 : 202;

    static {
        if (!Platform.isLinux()
                || !Platform.is64Bit()
                || !(Platform.isIntel() || Platform.isARM())) {
            throw new UnsatisfiedLinkError(
                    "shared memory and descriptors require Linux on x86_64 or aarch64; this is "
                            + Platform.RESOURCE_PREFIX);
        }
        Native.register(LibC.class, "c");
    }

    private LibC() {}

    public static native int memfd_create(String name, int flags) throws LastErrorException;

    static native int ftruncate(int fd, long length) throws LastErrorException;

    static native int open(String path, int flags) throws LastErrorException;

    static native long pread(int fd, long address, long count, long offset)
            throws LastErrorException;

    static native int fcntl(int fd, int command, int argument) throws LastErrorException;

    static native int flock(int fd, int operation) throws LastErrorException;

    static native int geteuid();

    static native int close(int fd) throws LastErrorException;

    /** Maps a file, or with descriptor -1 anonymous memory, at a preferred address; 0 for none. */
    public static native long mmap(
            long address, long length, int prot, int flags, int fd, long offset)
            throws LastErrorException;

    static native int munmap(long address, long length);

    static native int madvise(long address, long length, int advice);

    public static native int mprotect(long address, long length, int prot)
            throws LastErrorException;

    static native int socket(int domain, int type, int protocol) throws LastErrorException;

    static native int bind(int fd, long address, int byteSize) throws LastErrorException;

    static native int connect(int fd, long address, int byteSize) throws LastErrorException;

    static native long sendmsg(int fd, long message, int flags) throws LastErrorException;

    static native long recvmsg(int fd, long message, int flags) throws LastErrorException;

    static native int shutdown(int fd, int how) throws LastErrorException;

    static native int poll(long fds, long count, int timeoutMillis) throws LastErrorException;

    static native int sched_getaffinity(int thread, long byteSize, long mask)
            throws LastErrorException;

    static native int sched_setaffinity(int thread, long byteSize, long mask)
            throws LastErrorException;

    static native long memcpy(long destination, long source, long byteSize);

    /** Declared with the argument types of its only call, so that JNA needs no varargs. */
    private static native long syscall(
            long number, long address, int operation, int value, long timespec);

    static long futex(long address, int operation, int value, long timespec) {
        return syscall(SYS_FUTEX, address, operation, value, timespec);
    }
}
