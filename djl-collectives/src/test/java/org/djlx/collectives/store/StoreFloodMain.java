// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * A store's server in a small JVM, run by {@link StoreFloodTest}, and clients that want more memory
 * than there is.
 */
public final class StoreFloodMain {

    private static final int SERVE_MILLIS = 60_000;
    private static final int CLIENTS = 40;
    private static final int VALUE_BYTES = 8 << 20;
    private static final int KEYS = 128 << 10;
    private static final int SET = 1;
    private static final int GET = 3;
    private static final int WAIT = 6;

    private final TcpStore store =
            TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build();

    private StoreFloodMain() {}

    public static void main(String[] args) throws IOException {
        StoreFloodMain main = new StoreFloodMain();
        try {
            main.readersThatComeLate();
            main.waitsForManyKeys();
            main.valuesThatComeHalf();
            main.manyValues();
            System.out.println("survived");
        } finally {
            main.store.close();
        }
    }

    /** All of them ask before any reads: there is no room for a copy for each. */
    private void readersThatComeLate() throws IOException {
        byte[] value = new byte[VALUE_BYTES];
        value[VALUE_BYTES - 1] = 7;
        store.set("k", value);
        List<Socket> clients = new ArrayList<>();
        for (int i = 0; i < CLIENTS; i++) {
            Socket client = connect();
            client.getOutputStream().write(new Request(GET).text("/k").bytes());
            clients.add(client);
        }
        served();
        // A value in transit does not change.
        store.set("k", new byte[1]);
        for (Socket client : clients) {
            DataInputStream in = new DataInputStream(client.getInputStream());
            if (Long.reverseBytes(in.readLong()) != VALUE_BYTES) {
                throw new AssertionError("the length is wrong");
            }
            in.skipNBytes(VALUE_BYTES - 1);
            if (in.read() != 7) {
                throw new AssertionError("the value is wrong");
            }
        }
        end(clients);
    }

    private void waitsForManyKeys() throws IOException {
        List<Socket> clients = new ArrayList<>();
        for (int i = 0; i < CLIENTS; i++) {
            Request request = new Request(WAIT).number(KEYS);
            for (int key = 0; key < KEYS; key++) {
                request.text("/" + i + "-" + key);
            }
            clients.add(flood(request.bytes()));
        }
        end(clients);
    }

    private void valuesThatComeHalf() throws IOException {
        Request request = new Request(SET).text("/half").number(VALUE_BYTES);
        request.out.write(new byte[VALUE_BYTES - 1]);
        List<Socket> clients = new ArrayList<>();
        for (int i = 0; i < CLIENTS; i++) {
            clients.add(flood(request.bytes()));
        }
        end(clients);
    }

    private void manyValues() throws IOException {
        List<Socket> clients = new ArrayList<>();
        for (int i = 0; i < CLIENTS; i++) {
            Request request = new Request(SET).text("/" + i).number(VALUE_BYTES);
            request.out.write(new byte[VALUE_BYTES]);
            clients.add(flood(request.bytes()));
        }
        end(clients);
    }

    private Socket connect() throws IOException {
        Socket client = new Socket(InetAddress.getLoopbackAddress(), store.port());
        client.setSoTimeout(SERVE_MILLIS);
        client.getOutputStream().write(new byte[] {0, (byte) 0xce, (byte) 0xf7, (byte) 0x85, 0x3c});
        return client;
    }

    private Socket flood(byte[] request) throws IOException {
        Socket client = connect();
        try {
            client.getOutputStream().write(request);
        } catch (IOException e) {
            // Rejected, as the server must do beyond its limits.
        }
        return client;
    }

    /** Others are served meanwhile. */
    private void served() throws IOException {
        try (Socket other = connect()) {
            other.getOutputStream().write(new byte[] {13, 1, 2, 3, 4});
            if (other.getInputStream().readNBytes(4)[3] != 4) {
                throw new AssertionError("PING was not answered");
            }
        }
    }

    private void end(List<Socket> clients) throws IOException {
        served();
        for (Socket client : clients) {
            client.close();
        }
        served();
    }

    /** A request of PyTorch's protocol. */
    private static final class Request {

        private final ByteArrayOutputStream buffer = new ByteArrayOutputStream();
        private final DataOutputStream out = new DataOutputStream(buffer);

        Request(int command) throws IOException {
            out.writeByte(command);
        }

        Request number(long value) throws IOException {
            out.writeLong(Long.reverseBytes(value));
            return this;
        }

        Request text(String text) throws IOException {
            number(text.length());
            out.write(text.getBytes(StandardCharsets.US_ASCII));
            return this;
        }

        byte[] bytes() {
            return buffer.toByteArray();
        }
    }
}
