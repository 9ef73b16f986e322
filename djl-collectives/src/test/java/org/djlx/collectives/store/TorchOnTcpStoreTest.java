// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.djlx.collectives.store.StoreContractTest.bytes;
import static org.djlx.collectives.store.StoreContractTest.text;
import static org.djlx.collectives.store.TorchPeer.hex;
import static org.djlx.collectives.store.TorchPeer.unhex;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;

/** The client of PyTorch on our server. */
@Timeout(120)
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class TorchOnTcpStoreTest {

    private TorchPeer torch;
    private TcpStore server;

    @BeforeAll
    void startPeer() {
        torch = TorchPeer.start();
    }

    @AfterAll
    void stopPeer() {
        if (torch != null) {
            torch.close();
        }
    }

    @BeforeEach
    void connect() {
        server = TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build();
        torch.call("open", "t", server.port(), "client", 0, 60_000);
    }

    @AfterEach
    void disconnect() {
        torch.call("close", "t");
        server.close();
    }

    @Test
    void setGetAppendAndDelete() {
        torch.call("set", "t", hex("k"), hex("one"));
        assertEquals("one", text(server.get("k")));
        torch.call("append", "t", hex("k"), hex(" two"));
        assertEquals(hex("one two"), torch.call("get", "t", hex("k")));
        server.set("\u4e2d\ud83d\ude00", new byte[0]);
        assertEquals("-", torch.call("get", "t", hex("\u4e2d\ud83d\ude00")));
        assertEquals("2", torch.call("numKeys", "t"));
        assertEquals("true", torch.call("delete", "t", hex("k")));
        assertEquals("false", torch.call("delete", "t", hex("k")));
        assertEquals(1, server.numKeys());
    }

    @Test
    void addAndCompareSet() {
        assertEquals("5", torch.call("add", "t", hex("n"), 5));
        assertEquals(3, server.add("n", -2));
        assertEquals("3", torch.call("add", "t", hex("n"), 0));
        assertEquals(hex("x"), torch.call("compareSet", "t", hex("c"), hex("x"), hex("y")));
        assertEquals(hex("y"), torch.call("compareSet", "t", hex("c"), "-", hex("y")));
        assertEquals(hex("y"), torch.call("compareSet", "t", hex("c"), hex("x"), hex("z")));
        assertEquals(hex("z"), torch.call("compareSet", "t", hex("c"), hex("y"), hex("z")));
        assertEquals("z", text(server.get("c")));
    }

    @Test
    void torchChecksAndWaitsForKeysOfTheServer() throws InterruptedException {
        server.set("a", bytes("1"));
        assertEquals("true", torch.call("check", "t", hex("a")));
        assertEquals("false", torch.call("check", "t", hex("a"), hex("b")));
        torch.send("wait", "t", hex("a"), hex("b"), hex("c"));
        Thread.sleep(50);
        server.set("b", bytes("1"));
        server.add("c", 1);
        assertEquals("", torch.result());
    }

    @Test
    void aTimeoutLeavesTheConnectionUsable() {
        torch.call("open", "hasty", server.port(), "client", 0, 1000);
        for (int i = 0; i < 2; i++) {
            String key = hex("late" + i);
            IllegalStateException e =
                    assertThrows(
                            IllegalStateException.class, () -> torch.call("get", "hasty", key));
            assertTrue(e.getMessage().contains("imeout"), e.getMessage());
            server.set("late" + i, bytes("now"));
            assertEquals(hex("now"), torch.call("get", "hasty", key));
        }
        torch.call("close", "hasty");
    }

    @Test
    void torchSetsAndGetsValuesOfMegabytes() {
        byte[] big = new byte[3_000_001];
        new Random(1).nextBytes(big);
        torch.call("set", "t", hex("big"), hex(big));
        assertArrayEquals(big, server.get("big"));
        server.append("big", big);
        assertEquals(2 * big.length, unhex(torch.call("get", "t", hex("big"))).length);
    }

    @Test
    void ourServerWaitsForItsWorker() {
        int port = server.port();
        torch.call("close", "t");
        server.close();
        torch.send("open", "t", port, "client", 2, 60_000);
        server =
                TcpStore.builder()
                        .setHost("localhost")
                        .setPort(port)
                        .optServer(true)
                        .optWorldSize(2)
                        .build();
        assertEquals("" + port, torch.result());
    }

    @Test
    void torchPushesToAndPopsFromQueues() throws InterruptedException {
        torch.call("queuePush", "t", hex("q"), hex("one"));
        server.queuePush("q", bytes(""));
        assertEquals("2", torch.call("queueLen", "t", hex("q")));
        assertEquals(hex("one"), torch.call("queuePop", "t", hex("q"), true));
        assertEquals("-", torch.call("queuePop", "t", hex("q"), false));
        IllegalStateException empty =
                assertThrows(
                        IllegalStateException.class,
                        () -> torch.call("queuePop", "t", hex("q"), false));
        assertTrue(empty.getMessage().contains("queue is empty"), empty.getMessage());
        torch.send("queuePop", "t", hex("q"), true);
        Thread.sleep(50);
        server.queuePush("q", bytes("late"));
        assertEquals(hex("late"), torch.result());
        server.queuePush("big", new byte[3_000_001]);
        assertEquals(3_000_001, unhex(torch.call("queuePop", "t", hex("big"), true)).length);
    }

    @Test
    void listKeysAndClone() {
        server.set("\u4e2d", bytes("1"));
        server.add("n", 1);
        server.queuePush("q", bytes("1"));
        List<String> keys = List.of(torch.call("listKeys", "t").split(" "));
        assertEquals(List.of(hex("n"), hex("\u4e2d")), keys.stream().sorted().toList());
        torch.call("clone", "t", "copy");
        torch.call("set", "copy", hex("k"), hex("2"));
        assertEquals("2", text(server.get("k")));
        torch.call("close", "copy");
        assertEquals(hex("2"), torch.call("get", "t", hex("k")));
    }
}
