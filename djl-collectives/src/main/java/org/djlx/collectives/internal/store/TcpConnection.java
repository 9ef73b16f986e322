// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.io.BufferedInputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ProtocolException;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.net.UnknownHostException;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import org.djlx.nativeops.host.Deadline;

/** The client's end of one connection to a TCPStore server. Used by one thread at a time. */
final class TcpConnection implements Closeable {

    private static final int MAX_CONNECT_MILLIS = 10_000;

    private final Socket socket;
    private final DataInputStream in;
    private final OutputStream out;
    private byte[] serverId;

    private TcpConnection(Socket socket) throws IOException {
        this.socket = socket;
        in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
        out = socket.getOutputStream();
    }

    /**
     * Connects, and checks that the peer is a TCPStore server with the same token, or else throws
     * ProtocolException; IOException if there is no answer. If interruptible, an interrupt of a
     * thread that uses the connection closes it.
     */
    static TcpConnection open(ServerAddress server, boolean interruptible, Deadline deadline)
            throws IOException {
        IOException failure = new UnknownHostException(server.host());
        for (InetAddress address : InetAddress.getAllByName(server.host())) {
            // Only the sockets of channels react to interrupts.
            Socket socket = interruptible ? SocketChannel.open().socket() : new Socket();
            try {
                socket.connect(
                        new InetSocketAddress(address, server.port()),
                        Math.min(MAX_CONNECT_MILLIS, deadline.remainingMillis()));
                socket.setTcpNoDelay(true);
                socket.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
                TcpConnection connection = new TcpConnection(socket);
                connection.shakeHands(server.token(), deadline);
                return connection;
            } catch (IOException e) {
                socket.close();
                failure = e;
                if (e instanceof ProtocolException) {
                    // Another program answered, so retrying does not help.
                    break;
                }
            }
        }
        throw failure;
    }

    /**
     * Sends a request and returns its answer, as {@link KeyValueMap#execute}. A command without an
     * answer is followed by a PING, whose answer confirms it; if the server rejects the command,
     * this call fails and not a later one.
     */
    Object execute(Request request, int timeoutMillis) throws IOException {
        RequestWriter bytes = new RequestWriter().request(request);
        if (request.command().isConfirmedByPing()) {
            ping(bytes, timeoutMillis);
            return null;
        }
        send(bytes);
        return switch (request.command()) {
            case CHECK -> readByte() == Command.READY;
            case GET, COMPARE_SET -> readValue();
            case MULTI_GET -> readValues(request.keys().size());
            case QUEUE_POP -> readLong() > 0 ? readValue() : null;
            case LIST_KEYS ->
                    readValues(readLong()).stream()
                            .map(key -> new String(key, StandardCharsets.UTF_8))
                            .filter(key -> key.startsWith(Command.KEY_PREFIX))
                            .map(key -> key.substring(Command.KEY_PREFIX.length()))
                            .toList();
            default -> readLong();
        };
    }

    private List<byte[]> readValues(long count) throws IOException {
        List<byte[]> values = new ArrayList<>();
        for (long i = 0; i < count; i++) {
            values.add(readValue());
        }
        return values;
    }

    /** Sends a PING and waits for its answer, which confirms all earlier commands. */
    void ping(RequestWriter before, int timeoutMillis) throws IOException {
        int nonce = ThreadLocalRandom.current().nextInt();
        send(before.command(Command.PING).number32(nonce));
        socket.setSoTimeout(timeoutMillis);
        int echo = Integer.reverseBytes(in.readInt());
        if (echo != nonce) {
            throw new ProtocolException("something that is not a TCPStore server answered");
        }
    }

    void send(RequestWriter request) throws IOException {
        request.writeTo(out);
        out.flush();
    }

    void setReadTimeout(int millis) throws IOException {
        socket.setSoTimeout(millis);
    }

    int readByte() throws IOException {
        return in.readUnsignedByte();
    }

    /** Reads a byte; returns -1 if the deadline has passed. */
    int readByte(Deadline deadline) throws IOException {
        do {
            try {
                socket.setSoTimeout(deadline.remainingMillis());
                return in.readUnsignedByte();
            } catch (SocketTimeoutException e) {
                // The maximum socket timeout is shorter than the maximum deadline.
            }
        } while (!deadline.isOver());
        return -1;
    }

    long readLong() throws IOException {
        return Long.reverseBytes(in.readLong());
    }

    private byte[] readValue() throws IOException {
        return readValue(Integer.MAX_VALUE);
    }

    private byte[] readValue(int maxBytes) throws IOException {
        long length = readLong();
        if (length < 0 || length > maxBytes) {
            throw new ProtocolException("invalid value length " + Long.toUnsignedString(length));
        }
        byte[] value = in.readNBytes((int) length);
        if (value.length < length) {
            throw new EOFException("the connection was closed within a value");
        }
        return value;
    }

    /** Closes the connection; a read in progress in another thread fails. */
    @Override
    public void close() {
        try {
            socket.close();
        } catch (IOException e) {
            // Nothing to recover.
        }
    }

    /** Returns the server's id; null for PyTorch's servers, which have none. */
    byte[] serverId() {
        return serverId;
    }

    private void shakeHands(StoreToken token, Deadline deadline) throws IOException {
        RequestWriter hello = new RequestWriter().command(Command.VALIDATE);
        ping(hello.number32(Command.MAGIC), deadline.remainingMillis());
        byte[] nonce = Hello.nonce();
        send(
                new RequestWriter()
                        .command(Command.COMPARE_SET)
                        .rawKey(Hello.KEY)
                        .value(nonce)
                        .value(new byte[0]));
        Hello.Reply reply = Hello.Reply.to(token, nonce, readValue(Hello.maxAnswerBytes()));
        if (reply.proof() != null) {
            send(new RequestWriter().command(Command.SET).rawKey(Hello.KEY).value(reply.proof()));
        }
        serverId = reply.serverId();
    }
}
