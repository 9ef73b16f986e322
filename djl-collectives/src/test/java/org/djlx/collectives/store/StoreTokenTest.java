// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.TestLog;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A server with a token serves only clients with the same token. */
@Timeout(60)
class StoreTokenTest {

    private static final Map<String, String> SECRET = Map.of("DJLX_STORE_TOKEN", "correct horse");
    private static final Map<String, String> OTHER = Map.of("DJLX_STORE_TOKEN", "battery staple");
    private static final Map<String, String> NONE = Map.of();

    private static TcpStore server(Map<String, String> environment) {
        return builder(0, environment).optServer(true).build();
    }

    private static TcpStore.Builder builder(int port, Map<String, String> environment) {
        return TcpStore.builder()
                .setHost("localhost")
                .setPort(port)
                .optEnvironment(environment)
                .optTimeout(Duration.ofMinutes(10));
    }

    @Test
    void clientsWithTheTokenAreServed() throws Exception {
        ExecutorService thread = Executors.newSingleThreadExecutor();
        try (TcpStore server = server(SECRET);
                TcpStore client = builder(server.port(), SECRET).build()) {
            server.set("k", new byte[5000]);
            assertEquals(5000, client.get("k").length);
            // This one waits on a connection of its own.
            Future<byte[]> waiting = thread.submit(() -> client.get("later"));
            server.set("later", new byte[1]);
            assertEquals(1, waiting.get().length);
            assertEquals(2, client.numKeys());
        } finally {
            thread.shutdown();
        }
    }

    @Test
    void warnsBeyondLoopbackOnlyWithoutToken() {
        try (TestLog log = new TestLog(TcpStore.class)) {
            for (Map<String, String> environment : List.of(SECRET, NONE)) {
                for (String address : List.of("127.0.0.1", "0.0.0.0")) {
                    builder(0, environment).optServer(true).optBindAddress(address).build().close();
                    boolean open = environment == NONE && address.equals("0.0.0.0");
                    assertEquals(open ? 1 : 0, log.count("without a token"));
                }
            }
        }
    }

    /** At once, though clients otherwise try again for the whole timeout, here 10 minutes. */
    @Test
    void tokenErrorsSayWhatToDo() {
        assertStranger(SECRET, NONE, "requires a token");
        assertStranger(SECRET, OTHER, "a different token");
        assertStranger(NONE, SECRET, "has no token");
    }

    private static void assertStranger(
            Map<String, String> servers, Map<String, String> clients, String text) {
        try (TcpStore server = server(servers)) {
            String message =
                    assertThrows(
                                    CollectiveException.class,
                                    () -> builder(server.port(), clients).build())
                            .getMessage();
            assertTrue(message.contains(text), message);
            assertTrue(message.contains("DJLX_STORE_TOKEN"), message);
            assertFalse(message.contains("horse") || message.contains("staple"), message);
            assertEquals(0, server.numKeys());
        }
    }

    /** Requests of PyTorch's clients and of attackers. */
    @Test
    void commandsWithoutProofAreNotExecuted() throws Exception {
        HexFormat hex = HexFormat.of();
        String key = "0a00000000000000" + hex.formatHex("djlx/hello".getBytes());
        String hello = "02" + key + "1000000000000000" + "00".repeat(16) + "0000000000000000";
        String proof = "2000000000000000" + "00".repeat(32);
        try (TcpStore server = server(SECRET)) {
            for (String request :
                    List.of(
                            "04 0500000000000000 696e69742f 0100000000000000", // ADD init/ 1
                            "01 0200000000000000 2f6b 0100000000000000 31", // SET /k
                            "03 0200000000000000 2f6b", // GET /k
                            "07", // GETNUMKEYS
                            "06 0000000000000000", // WAIT for nothing
                            "01" + key + proof, // A proof without a challenge.
                            hello + "01" + key + proof, // A wrong one.
                            hello + "07", // None.
                            "01 0200000000000000 2f6b 4100000000000000", // A value of 65 bytes
                            "05 0104000000000000")) { // 1025 keys
                try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), server.port())) {
                    socket.getOutputStream()
                            .write(hex.parseHex("00cef7853c" + request.replace(" ", "")));
                    int expected = request.startsWith("02") ? 8 + 64 : 0;
                    InputStream in = socket.getInputStream();
                    assertEquals(expected, in.readAllBytes().length, request);
                }
            }
            assertEquals(0, server.numKeys());
        }
    }

    /** Also without a token: then the hello is the first command of the protocol. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void connectionsWithoutAHelloAreClosed(boolean secret) throws Exception {
        try (TcpStore server = server(secret ? SECRET : NONE);
                Socket silent = new Socket(InetAddress.getLoopbackAddress(), server.port())) {
            if (secret) {
                silent.getOutputStream().write(HexFormat.of().parseHex("00cef7853c"));
            }
            silent.setSoTimeout(40_000); // An interrupt does not end the read.
            assertEquals(-1, silent.getInputStream().read());
            server.set("k", new byte[1]); // Its own connection is as old.
        }
    }

    @Test
    void silentConnectionsDoNotKeepClientsOut() throws Exception {
        List<Socket> silent = new ArrayList<>();
        try (TcpStore server =
                LimitedStore.maxConnections(builder(0, SECRET).optServer(true), 8).build()) {
            for (int i = 0; i < 50; i++) {
                silent.add(new Socket(InetAddress.getLoopbackAddress(), server.port()));
            }
            try (TcpStore client = builder(server.port(), SECRET).build()) {
                client.set("k", new byte[1]);
            }
        } finally {
            for (Socket socket : silent) {
                socket.close();
            }
        }
    }

    @Test
    void theSecretIsNotSent() throws Exception {
        try (ServerSocket eavesdropper = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            ExecutorService thread = Executors.newSingleThreadExecutor();
            Future<?> client =
                    thread.submit(() -> builder(eavesdropper.getLocalPort(), SECRET).build());
            try (Socket socket = eavesdropper.accept()) {
                byte[] ping = socket.getInputStream().readNBytes(10);
                socket.getOutputStream().write(ping, 6, 4);
                // Then comes its hello; the answer is that of a server without the secret.
                byte[] hello = socket.getInputStream().readNBytes(1 + 8 + 10 + 8 + 16 + 8);
                socket.getOutputStream().write(HexFormat.of().parseHex("4000000000000000"));
                socket.getOutputStream().write(new byte[64]);
                byte[] rest = socket.getInputStream().readAllBytes();
                assertEquals(0, rest.length);
                String sent = new String(hello, StandardCharsets.ISO_8859_1);
                assertFalse(sent.contains("horse"));
            }
            assertThrows(ExecutionException.class, client::get);
            thread.shutdown();
        }
    }

    @Test
    void emptyTokenIsRefused() {
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> builder(1, Map.of("DJLX_STORE_TOKEN", " ")))
                        .getMessage();
        assertTrue(message.contains("DJLX_STORE_TOKEN"), message);
    }
}
