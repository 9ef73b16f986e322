// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.util.HexFormat;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The server, byte by byte. */
@Timeout(120)
class ServerConnectionTest {

    private TcpStoreServer server;
    private Socket socket;
    private DataInputStream in;
    private OutputStream out;

    @BeforeEach
    void connect() throws IOException {
        server =
                TcpStoreServer.start(
                        new InetSocketAddress(InetAddress.getLoopbackAddress(), 0),
                        new ServerLimits(10, 10, 4 << 20, 64 << 20),
                        0,
                        null);
        socket = new Socket(server.address().getAddress(), server.address().getPort());
        in = new DataInputStream(socket.getInputStream());
        out = socket.getOutputStream();
        send("00 cef7853c");
    }

    @AfterEach
    void disconnect() throws IOException {
        socket.close();
        server.close();
    }

    @Test
    void pingIsEchoed() throws IOException {
        send("0d 78563412");
        assertAnswer("78563412");
    }

    @Test
    void commandsAndTheirAnswers() throws IOException {
        send("01 0200000000000000 2f6b 0300000000000000 313233");
        send("03 0200000000000000 2f6b");
        assertAnswer("0300000000000000 313233");
        send("04 0200000000000000 2f6b ffffffffffffffff");
        assertAnswer("7a00000000000000");
        send("02 0200000000000000 2f6b 0300000000000000 313232 0100000000000000 37");
        assertAnswer("0100000000000000 37");
        send("09 0200000000000000 2f6b 0100000000000000 38");
        send("0b 0100000000000000 0100000000000000 6d 0000000000000000");
        send("0a 0200000000000000 0200000000000000 2f6b 0100000000000000 6d");
        assertAnswer("0200000000000000 3738 0000000000000000");
        send("05 0100000000000000 0200000000000000 2f6b");
        assertAnswer("00");
        send("05 0100000000000000 0100000000000000 78");
        assertAnswer("01");
        send("07");
        assertAnswer("0200000000000000");
        send("08 0100000000000000 6d");
        assertAnswer("0100000000000000");
    }

    /** The bytes are those of PyTorch 2.10's client and libuv server. */
    @Test
    void queuesAndTheListOfKeys() throws IOException {
        send("0e 0200000000000000 2f71 0200000000000000 0102");
        send("0e 0200000000000000 2f71 0100000000000000 03");
        send("10 0200000000000000 2f71");
        assertAnswer("0200000000000000");
        send("10 0500000000000000 2f6e6f6e65 07");
        assertAnswer("0000000000000000 0000000000000000");
        send("05 0100000000000000 0200000000000000 2f71");
        assertAnswer("00");
        send("03 0200000000000000 2f71");
        assertAnswer("0000000000000000");
        send("0f 0200000000000000 2f71");
        assertAnswer("0200000000000000 0200000000000000 0102");
        send("06 0100000000000000 0200000000000000 2f71 0f 0200000000000000 2f71");
        assertAnswer("00 0100000000000000 0100000000000000 03");
        send("0f 0200000000000000 2f71 11");
        assertAnswer("0000000000000000 0000000000000000");
        send("01 0200000000000000 2f6b 0100000000000000 07 11");
        assertAnswer("0100000000000000 0200000000000000 2f6b");
    }

    @Test
    void pushEndsOneWaitAndALeftValueEndsTheNext() throws IOException {
        String wait = "06 0100000000000000 0200000000000000 2f71";
        send(wait);
        pingIsEchoed();
        try (Socket second = new Socket(server.address().getAddress(), server.address().getPort());
                Socket pusher =
                        new Socket(server.address().getAddress(), server.address().getPort())) {
            // Each connection has executed its commands when it answers the ping.
            exchange(second, "00cef7853c" + wait + "0d78563412", "78563412");
            String push = "0e 0200000000000000 2f71 0100000000000000 01";
            exchange(pusher, "00cef7853c" + push + "0d78563412", "78563412");
            assertAnswer("00"); // The first waits no longer, and leaves without the value.
            exchange(second, "0d78563412", "78563412");
            socket.close();
            exchange(second, "", "00");
            exchange(second, "0f 0200000000000000 2f71", "0100000000000000 0100000000000000 01");
        }
    }

    @Test
    void waitForSeveralKeysLeavesAValueToTheNext() throws IOException {
        send("01 0100000000000000 6b 0000000000000000");
        send("06 0200000000000000 0100000000000000 6b 0200000000000000 2f71");
        pingIsEchoed();
        try (Socket second =
                new Socket(server.address().getAddress(), server.address().getPort())) {
            String wait = "06 0100000000000000 0200000000000000 2f71";
            exchange(second, "00cef7853c" + wait + "0d78563412", "78563412");
            send("0e 0200000000000000 2f71 0100000000000000 01");
            assertAnswer("00");
            pingIsEchoed(); // A command that is no pop.
            exchange(second, "", "00");
            exchange(second, "0f 0200000000000000 2f71", "0100000000000000 0100000000000000 01");
        }
    }

    @Test
    void poppedValuesTakeNoMemory() throws IOException {
        byte[] value = new byte[1 << 20];
        for (int i = 0; i < 100; i++) { // More than the server may keep.
            send("0e 0200000000000000 2f71 0000100000000000");
            out.write(value);
            send("0f 0200000000000000 2f71");
            assertAnswer("0100000000000000 0000100000000000");
            in.readFully(value);
        }
    }

    private static void exchange(Socket socket, String hex, String answer) throws IOException {
        HexFormat format = HexFormat.of();
        socket.getOutputStream().write(format.parseHex(hex.replace(" ", "")));
        String expected = answer.replace(" ", "");
        byte[] found = socket.getInputStream().readNBytes(expected.length() / 2);
        assertEquals(expected, format.formatHex(found));
    }

    @Test
    void getOfAnUnsetKeyReturnsAnEmptyValue() throws IOException {
        send("03 0100000000000000 78");
        assertAnswer("0000000000000000");
    }

    @Test
    void waitAndCancelWait() throws IOException {
        send("06 0100000000000000 0100000000000000 78 0c");
        assertAnswer("01");
        send("0c");
        assertAnswer("01");
        send("06 0100000000000000 0100000000000000 78");
        send("01 0100000000000000 78 0000000000000000");
        assertAnswer("00");
        send("06 0100000000000000 0100000000000000 78");
        assertAnswer("00");
    }

    @Test
    void aWaitGoesOnIfAKeyIsDeletedMeanwhile() throws IOException {
        send("06 0200000000000000 0100000000000000 78 0100000000000000 79");
        send("01 0100000000000000 78 0000000000000000");
        send("08 0100000000000000 78");
        assertAnswer("0100000000000000");
        send("01 0100000000000000 79 0000000000000000 0d 11111111");
        assertAnswer("11111111");
        send("01 0100000000000000 78 0000000000000000");
        assertAnswer("00");
    }

    @Test
    void invalidBytesEndTheConnection() throws IOException {
        for (String bad :
                new String[] {
                    "12", // no command
                    "00 cef7853c", // twice
                    "01 ffffffffffffffff", // a key of 2^64 - 1 bytes
                    "01 0120000000000000", // a key of 8193 bytes
                    "01 0100000000000000 6b 0100400000000000", // a value of 4 MiB + 1
                    "05 0100020000000000", // 131073 keys
                    "06 0100000000000000 0100000000000000 78 06 0000000000000000" // two waits
                }) {
            send(bad);
            assertEquals(-1, in.read(), bad);
            socket.close();
            connectAgain();
            send("00 cef7853c");
            pingIsEchoed();
        }
    }

    @Test
    void theFirstCommandMustIdentifyTheClient() throws IOException {
        for (String bad : new String[] {"00 cef7853d", "07"}) {
            connectAgain();
            send(bad);
            assertEquals(-1, in.read(), bad);
        }
    }

    @Test
    @Tag("slow")
    void clientThatReadsNoAnswersIsNotRead() throws Exception {
        // 2 GB of answers to 100 KB of requests: more than the server could keep.
        byte[] value = new byte[4 << 20];
        out.write(HexFormat.of().parseHex("01" + "0100000000000000" + "6b" + "0000400000000000"));
        out.write(value);
        int gets = 500;
        for (int i = 0; i < gets; i++) {
            send("03 0100000000000000 6b");
        }
        try (Socket other = new Socket(server.address().getAddress(), server.address().getPort())) {
            other.getOutputStream().write(HexFormat.of().parseHex("00cef7853c" + "0d01020304"));
            assertEquals(1, other.getInputStream().read(), "others are served meanwhile");
        }
        for (int i = 0; i < gets; i++) {
            assertEquals(Long.reverseBytes(value.length), in.readLong());
            in.skipNBytes(value.length);
        }
        pingIsEchoed();
    }

    @Test
    void smallRequestsSucceedWhileMemoryIsExhausted() throws IOException {
        TcpStoreServer small =
                TcpStoreServer.start(
                        new InetSocketAddress(InetAddress.getLoopbackAddress(), 0),
                        new ServerLimits(10, 10, 8192, 100_000),
                        0,
                        null);
        int port = small.address().getPort();
        try (small;
                Socket greedy = new Socket(small.address().getAddress(), port)) {
            // A wait for 2000 keys; each received key is kept and takes 100 bytes.
            greedy.getOutputStream()
                    .write(HexFormat.of().parseHex("00cef7853c" + "06" + "d007000000000000"));
            byte[] key = HexFormat.of().parseHex("2400000000000000" + "78".repeat(36));
            greedy.setSoTimeout(1);
            socket.close();
            socket = new Socket(small.address().getAddress(), port);
            in = new DataInputStream(socket.getInputStream());
            out = socket.getOutputStream();
            send("00 cef7853c");
            boolean refused = false;
            for (int keys = 0; keys < 2000 && !refused; keys++) {
                greedy.getOutputStream().write(key);
                refused = isClosed(greedy);
                pingIsEchoed();
                send("05 0100000000000000 0200000000000000 2f6b");
                assertAnswer("01");
            }
            assertTrue(refused);
        }
    }

    private static boolean isClosed(Socket socket) throws IOException {
        try {
            return socket.getInputStream().read() < 0;
        } catch (SocketTimeoutException e) {
            return false;
        } catch (SocketException e) {
            return true; // Reset, as a key had not been read yet.
        }
    }

    @Test
    void closingTheServerFreesThePort() throws IOException {
        pingIsEchoed();
        server.close();
        assertEquals(-1, in.read());
        TcpStoreServer again =
                TcpStoreServer.start(server.address(), new ServerLimits(1, 1, 1, 1), 0, null);
        assertEquals(server.address(), again.address());
        again.close();
        server.close();
    }

    private void connectAgain() throws IOException {
        socket = new Socket(server.address().getAddress(), server.address().getPort());
        in = new DataInputStream(socket.getInputStream());
        out = socket.getOutputStream();
    }

    private void send(String hex) throws IOException {
        out.write(HexFormat.of().parseHex(hex.replace(" ", "")));
    }

    private void assertAnswer(String hex) throws IOException {
        String expected = hex.replace(" ", "");
        byte[] answer = in.readNBytes(expected.length() / 2);
        assertEquals(expected, HexFormat.of().formatHex(answer));
    }
}
