// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import ai.djl.engine.EngineException;
import com.sun.jna.LastErrorException;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Optional;

/**
 * Receives file descriptors from threads and processes of this host.
 *
 * <p>It is a datagram socket in the abstract namespace of Unix domain sockets (unix(7)), so no file
 * is left behind however the process ends. All processes must be in the same network namespace. A
 * message is a tag, a token and one descriptor:
 *
 * <pre>
 *   data      int tag | token                     host byte order
 *   control   one SCM_RIGHTS message of one descriptor
 * </pre>
 *
 * <p><b>Security.</b> Every process in the network namespace can see the names and send messages.
 * Only the ranks know the token; messages without it are dropped and their descriptors closed.
 *
 * <p><b>Threads.</b> Thread-safe; one thread receives at a time. An interrupt does not end a wait,
 * {@link #close()} does. Failures of the system are {@link EngineException}s.
 */
public final class DescriptorChannel implements AutoCloseable {

    private static final int NAME_BYTES = 16;
    private static final int MAX_NAME_BYTES = 107; // the size of sun_path, minus the leading zero
    private static final int MAX_TOKEN_BYTES = 4096;
    private static final Duration MAX_TIMEOUT = Duration.ofDays(365);
    private static final SecureRandom RANDOM = new SecureRandom();

    private final String name;
    private final int socket;
    private final Object receiving = new Object();
    private volatile boolean closed;

    private DescriptorChannel(String name, int socket) {
        this.name = name;
        this.socket = socket;
    }

    /** A received descriptor, which the receiver closes. */
    public record Received(int tag, Descriptor descriptor) {}

    /**
     * Opens a channel with a new random name, which the caller closes; throws EngineException if
     * the system refuses.
     */
    public static DescriptorChannel open() {
        byte[] random = new byte[NAME_BYTES];
        RANDOM.nextBytes(random);
        String name = "djlx-" + HexFormat.of().formatHex(random);
        int socket = socket();
        boolean bound = false;
        try (Memory address = address(name)) {
            LibC.bind(socket, Pointer.nativeValue(address), (int) address.size());
            bound = true;
            return new DescriptorChannel(name, socket);
        } catch (LastErrorException e) {
            throw new EngineException("cannot bind a Unix domain socket: " + e.getMessage(), e);
        } finally {
            if (!bound) {
                Descriptor.close(socket);
            }
        }
    }

    /** {@return the name for {@link #send}} */
    public String name() {
        return name;
    }

    /**
     * Sends a copy of a descriptor. Waits while the receiver's queue is full (10 messages on many
     * systems).
     *
     * @param name the receiver's {@link #name()}
     * @param token the token that the receiver expects; 1 to 4096 bytes
     * @param tag a number that identifies the descriptor for the receiver
     * @param descriptor the descriptor; the caller keeps it and may close it after the call
     * @throws EngineException if there is no receiver of this name, it has ended, or its queue
     *     stays full until the timeout
     */
    public static void send(
            String name, byte[] token, int tag, Descriptor descriptor, Duration timeout) {
        requireToken(token);
        if (name == null || descriptor == null) {
            throw new IllegalArgumentException(
                    "the receiver's name or the descriptor is null: " + name + ", " + descriptor);
        }
        long deadline = deadline(timeout);
        // A new socket, connected to the receiver: only then does poll(2) wait for its queue.
        int socket = socket();
        try (Memory address = address(name);
                Message message = new Message(token.length)) {
            message.put(tag, token, descriptor.number());
            LibC.connect(socket, Pointer.nativeValue(address), (int) address.size());
            while (!message.send(socket)) {
                if (!poll(socket, LibC.POLLOUT, deadline)) {
                    throw new EngineException(
                            String.format(
                                    "the descriptor with tag %d was not sent to %s: its queue was"
                                            + " full for %s s",
                                    tag, name, timeout.toMillis() / 1e3));
                }
            }
        } catch (LastErrorException e) {
            String cause =
                    e.getErrorCode() == LibC.ECONNREFUSED || e.getErrorCode() == LibC.EPIPE
                            ? "no channel has this name; its process has ended or closed the"
                                    + " channel, or is on another host or in another network"
                                    + " namespace"
                            : e.getMessage();
            throw new EngineException(
                    String.format(
                            "the descriptor with tag %d was not sent to %s: %s", tag, name, cause),
                    e);
        } finally {
            Descriptor.close(socket);
        }
    }

    /**
     * Waits for the next descriptor with a token.
     *
     * @param token the token; messages with another token are dropped
     * @param timeout how long to wait; zero does not wait
     * @return the descriptor; empty if none arrived before the timeout
     * @throws EngineException if a descriptor with this token was lost because this process has too
     *     many open files
     * @throws IllegalStateException if the channel is closed, also during the wait
     */
    public Optional<Received> receive(byte[] token, Duration timeout) {
        requireToken(token);
        long deadline = deadline(timeout);
        synchronized (receiving) {
            try (Message message = new Message(token.length)) {
                do {
                    while (!closed && message.receive(socket)) {
                        Received received = message.take(token);
                        if (received != null) {
                            return Optional.of(received);
                        }
                    }
                    if (closed) {
                        throw new IllegalStateException(this + " is closed");
                    }
                } while (poll(socket, LibC.POLLIN, deadline));
                return Optional.empty();
            } catch (LastErrorException e) {
                throw new EngineException(this + " cannot receive: " + e.getMessage(), e);
            }
        }
    }

    /** Ends a thread's wait for a descriptor, and drops undelivered messages. Idempotent. */
    @Override
    public void close() {
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        try {
            // Wakes a polling thread before the descriptor number can be reused.
            LibC.shutdown(socket, LibC.SHUT_RDWR);
        } finally {
            synchronized (receiving) {
                Descriptor.close(socket);
            }
        }
    }

    @Override
    public String toString() {
        return "the descriptor channel " + name;
    }

    private static int socket() {
        try {
            return LibC.socket(LibC.AF_UNIX, LibC.SOCK_DGRAM_CLOEXEC, 0);
        } catch (LastErrorException e) {
            throw new EngineException("cannot create a Unix domain socket: " + e.getMessage(), e);
        }
    }

    /**
     * Returns a sockaddr_un of the length of the name.
     *
     * <pre>
     *   0   u16 sun_family | 0 | name
     * </pre>
     */
    private static Memory address(String name) {
        byte[] bytes = name.getBytes(StandardCharsets.UTF_8);
        if (bytes.length == 0 || bytes.length > MAX_NAME_BYTES) {
            throw new IllegalArgumentException(
                    "the name of a channel must have 1 to " + MAX_NAME_BYTES + " bytes: " + name);
        }
        Memory address = new Memory(Short.BYTES + 1 + bytes.length);
        address.setShort(0, (short) LibC.AF_UNIX);
        address.setByte(Short.BYTES, (byte) 0);
        address.write(Short.BYTES + 1, bytes, 0, bytes.length);
        return address;
    }

    private static void requireToken(byte[] token) {
        if (token == null || token.length == 0 || token.length > MAX_TOKEN_BYTES) {
            throw new IllegalArgumentException(
                    "the token must have 1 to " + MAX_TOKEN_BYTES + " bytes");
        }
    }

    private static long deadline(Duration timeout) {
        if (timeout == null || timeout.isNegative()) {
            throw new IllegalArgumentException("the timeout is null or negative: " + timeout);
        }
        Duration bounded = timeout.compareTo(MAX_TIMEOUT) > 0 ? MAX_TIMEOUT : timeout;
        return System.nanoTime() + bounded.toNanos();
    }

    /**
     * Waits until a socket is ready or broken. A signal may end the wait early; then the caller
     * finds nothing and polls again.
     *
     * <pre>
     *   struct pollfd   0   int fd | 4   short events | 6   short revents
     * </pre>
     *
     * @return false if the deadline has passed
     */
    private static boolean poll(int socket, int events, long deadline) {
        long nanos = deadline - System.nanoTime();
        if (nanos <= 0) {
            return false;
        }
        try (Memory pollfd = new Memory(8)) {
            pollfd.setInt(0, socket);
            pollfd.setInt(4, events);
            long millis = Math.min(nanos / 1_000_000 + 1, Integer.MAX_VALUE);
            LibC.poll(Pointer.nativeValue(pollfd), 1, (int) millis);
        } catch (LastErrorException e) {
            if (e.getErrorCode() != LibC.EINTR) {
                throw e;
            }
        }
        return true;
    }

    /**
     * A message in native memory, as sendmsg(2) and recvmsg(2) take it on 64-bit Linux.
     *
     * <pre>
     *         struct msghdr
     *    0    void*  msg_name         null: the socket is connected, or the sender does not matter
     *    8    u32    msg_namelen      0, padded to 8 bytes
     *   16    iovec* msg_iov          = base + 56
     *   24    size_t msg_iovlen       1
     *   32    void*  msg_control      = base + 72
     *   40    size_t msg_controllen   24
     *   48    int    msg_flags        set by recvmsg; padded to 8 bytes
     *         struct iovec
     *   56    void*  iov_base         = base + 96
     *   64    size_t iov_len
     *         struct cmsghdr
     *   72    size_t cmsg_len         16 + 4 for each descriptor
     *   80    int    cmsg_level       SOL_SOCKET
     *   84    int    cmsg_type        SCM_RIGHTS
     *   88    int[]  descriptors      room for two; one is expected
     *         data
     *   96    int    tag
     *  100    byte[] token
     * </pre>
     */
    private static final class Message implements AutoCloseable {

        private static final int IOV_POINTER = 16;
        private static final int IOV_COUNT = 24;
        private static final int CONTROL_POINTER = 32;
        private static final int CONTROL_BYTES = 40;
        private static final int FLAGS = 48;
        private static final int IOV = 56;
        private static final int CONTROL = 72;
        private static final int CONTROL_HEADER_BYTES = 16;
        private static final int DESCRIPTORS = CONTROL + CONTROL_HEADER_BYTES;
        private static final int DATA = 96;
        private static final int TOKEN = DATA + Integer.BYTES;

        private final Memory memory;
        private final int tokenBytes;
        private long received; // bytes of data

        Message(int tokenBytes) {
            this.tokenBytes = tokenBytes;
            this.memory = new Memory(TOKEN + tokenBytes);
            memory.clear();
            long base = Pointer.nativeValue(memory);
            memory.setLong(IOV_POINTER, base + IOV);
            memory.setLong(IOV_COUNT, 1);
            memory.setLong(CONTROL_POINTER, base + CONTROL);
            memory.setLong(IOV, base + DATA);
            memory.setLong(IOV + Long.BYTES, Integer.BYTES + tokenBytes);
        }

        void put(int tag, byte[] token, int descriptor) {
            memory.setLong(CONTROL_BYTES, DATA - CONTROL);
            memory.setLong(CONTROL, CONTROL_HEADER_BYTES + Integer.BYTES);
            memory.setInt(CONTROL + 8, LibC.SOL_SOCKET);
            memory.setInt(CONTROL + 12, LibC.SCM_RIGHTS);
            memory.setInt(DESCRIPTORS, descriptor);
            memory.setInt(DATA, tag);
            memory.write(TOKEN, token, 0, token.length);
        }

        /** Returns false if the receiver's queue is full, or spuriously. */
        boolean send(int socket) {
            return call(
                    () ->
                            LibC.sendmsg(
                                    socket,
                                    Pointer.nativeValue(memory),
                                    LibC.MSG_DONTWAIT | LibC.MSG_NOSIGNAL));
        }

        /** Returns false if there is no message, or spuriously. */
        boolean receive(int socket) {
            memory.setLong(CONTROL_BYTES, DATA - CONTROL);
            memory.setLong(CONTROL, 0);
            return call(
                    () ->
                            received =
                                    LibC.recvmsg(
                                            socket,
                                            Pointer.nativeValue(memory),
                                            LibC.MSG_DONTWAIT | LibC.MSG_CMSG_CLOEXEC));
        }

        private static boolean call(Runnable call) {
            try {
                call.run();
                return true;
            } catch (LastErrorException e) {
                if (e.getErrorCode() == LibC.EAGAIN || e.getErrorCode() == LibC.EINTR) {
                    return false;
                }
                throw e;
            }
        }

        /**
         * Returns the message's descriptor. If the token does not match, closes all descriptors and
         * returns null.
         */
        Received take(byte[] token) {
            int count = descriptorCount();
            int flags = memory.getInt(FLAGS);
            boolean matches =
                    received == Integer.BYTES + tokenBytes
                            && (flags & LibC.MSG_TRUNC) == 0
                            && MessageDigest.isEqual(token, memory.getByteArray(TOKEN, tokenBytes));
            if (matches && count == 1 && (flags & LibC.MSG_CTRUNC) == 0) {
                return new Received(
                        memory.getInt(DATA), new Descriptor(memory.getInt(DESCRIPTORS)));
            }
            for (int i = 0; i < count; i++) {
                Descriptor.close(memory.getInt(DESCRIPTORS + (long) i * Integer.BYTES));
            }
            if (matches && (flags & LibC.MSG_CTRUNC) != 0) {
                throw new EngineException(
                        String.format(
                                "the descriptor with tag %d was lost, because this process has too"
                                        + " many open files; raise ulimit -n",
                                memory.getInt(DATA)));
            }
            return null;
        }

        /**
         * Returns the number of received descriptors. The system opens only the descriptors that
         * fit into the buffer.
         */
        private int descriptorCount() {
            boolean any =
                    memory.getLong(CONTROL_BYTES) >= CONTROL_HEADER_BYTES
                            && memory.getInt(CONTROL + 8) == LibC.SOL_SOCKET
                            && memory.getInt(CONTROL + 12) == LibC.SCM_RIGHTS;
            return any ? (int) (memory.getLong(CONTROL) - CONTROL_HEADER_BYTES) / Integer.BYTES : 0;
        }

        @Override
        public void close() {
            memory.close();
        }
    }
}
