// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/**
 * Clients that want to bring a store's server down, speaking PyTorch's protocol or none at all.
 * None of them waits: what the server does not take is left. For one thread.
 */
final class StoreFlood implements AutoCloseable {

    /** What the clients do. */
    enum Kind {
        NOISE,
        CHURN,
        IDLE_CONNECTIONS,
        HALF_REQUESTS,
        OVERSIZED_VALUES,
        SLOW_READERS,
        WAITS,
        LARGE_VALUES;

        /** Whether the server may run out of what it grants its clients together. */
        boolean takesMemory() {
            return compareTo(HALF_REQUESTS) >= 0;
        }
    }

    /** The keys of large values, which somebody has to delete afterwards. */
    static final int KEYS = 32;

    /** The key of a value that slow readers ask for. */
    static final String LARGE = "large";

    private static final int SET = 1;
    private static final int GET = 3;
    private static final int WAIT = 6;
    private static final int LARGEST_VALUE = 8 << 20; // That the server takes.
    private static final int MOST_WAITS = 128 << 10;
    private static final int MOST_CLIENTS = 200;

    private final InetSocketAddress server;
    private final Random random;
    private final List<SocketChannel> clients = new ArrayList<>();

    StoreFlood(int port, long seed) {
        server = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        random = new Random(seed);
    }

    static String key(int index) {
        return "flood" + index;
    }

    /** Does one thing; what the server has closed, or does not take, is no failure. */
    void step(Kind kind) throws IOException {
        if (clients.size() == MOST_CLIENTS || !clients.isEmpty() && random.nextInt(40) == 0) {
            end(clients.remove(random.nextInt(clients.size())));
        }
        try {
            switch (kind) {
                case NOISE -> {
                    byte[] noise = new byte[random.nextInt(2000)];
                    random.nextBytes(noise);
                    send(any(), ByteBuffer.wrap(noise));
                }
                case CHURN -> {
                    connect();
                    end(clients.remove(random.nextInt(clients.size())));
                }
                case IDLE_CONNECTIONS -> connect();
                case HALF_REQUESTS -> {
                    ByteBuffer whole = set(random.nextInt(KEYS), random.nextInt(LARGEST_VALUE));
                    send(any(), whole.limit(random.nextInt(whole.limit())));
                }
                case OVERSIZED_VALUES -> send(any(), oversized());
                case SLOW_READERS -> slowReader();
                case WAITS -> send(any(), waits(1 + random.nextInt(MOST_WAITS)));
                default -> send(any(), set(random.nextInt(KEYS), random.nextInt(LARGEST_VALUE)));
            }
        } catch (IOException e) {
            // The server has closed the connection, which is what it is to do if this is too much.
        }
    }

    private SocketChannel any() throws IOException {
        return clients.isEmpty() || random.nextInt(4) == 0
                ? connect()
                : clients.get(random.nextInt(clients.size()));
    }

    private SocketChannel connect() throws IOException {
        SocketChannel client = SocketChannel.open(server);
        clients.add(client);
        client.configureBlocking(false);
        if (random.nextInt(8) > 0) {
            send(
                    client,
                    ByteBuffer.wrap(new byte[] {0, (byte) 0xce, (byte) 0xf7, (byte) 0x85, 60}));
        }
        return client;
    }

    /** Sends what the server takes soon. */
    private static void send(SocketChannel client, ByteBuffer bytes) throws IOException {
        for (int idle = 0; bytes.hasRemaining() && idle < 20; ) {
            if (client.write(bytes) == 0) {
                idle++;
                Thread.yield();
            }
        }
    }

    private static ByteBuffer request(int command, int room) {
        ByteBuffer request = ByteBuffer.allocate(room + 64).order(ByteOrder.LITTLE_ENDIAN);
        return request.put((byte) command);
    }

    private static void put(ByteBuffer request, String text) {
        byte[] bytes = ("/" + text).getBytes(StandardCharsets.US_ASCII);
        request.putLong(bytes.length).put(bytes);
    }

    private static ByteBuffer set(int index, int size) {
        ByteBuffer request = request(SET, size);
        put(request, key(index));
        request.putLong(size).position(request.position() + size);
        return request.flip();
    }

    private ByteBuffer oversized() {
        ByteBuffer request = request(SET, 1000);
        put(request, key(0));
        long[] sizes = {-1, LARGEST_VALUE + 1L, 1L << 31, 1L << 40, Long.MAX_VALUE};
        request.putLong(sizes[random.nextInt(sizes.length)]);
        return request.position(request.position() + random.nextInt(500)).flip();
    }

    private ByteBuffer waits(int keys) {
        ByteBuffer request = request(WAIT, keys * 32);
        request.putLong(keys);
        for (int i = 0; i < keys; i++) {
            put(request, "never" + random.nextInt());
        }
        return request.flip();
    }

    private void slowReader() throws IOException {
        SocketChannel client = any();
        ByteBuffer request = request(GET, 0);
        put(request, LARGE);
        send(client, request.flip());
        client.read(ByteBuffer.allocate(1 + random.nextInt(100)));
    }

    /** Closes a connection, sometimes so that the server sees a reset. */
    private void end(SocketChannel client) throws IOException {
        if (random.nextInt(3) == 0) {
            client.setOption(StandardSocketOptions.SO_LINGER, 0);
        }
        client.close();
    }

    @Override
    public void close() throws IOException {
        for (SocketChannel client : clients) {
            client.close();
        }
        clients.clear();
    }
}
