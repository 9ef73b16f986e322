// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;

/** Our client on the servers of PyTorch. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class TcpStoreOnTorchTest extends StoreContractTest {

    private final String backend;
    private TorchPeer torch;
    private int port;

    TcpStoreOnTorchTest(String backend) {
        this.backend = backend;
    }

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

    @Override
    Store open() {
        if (port == 0) {
            port = Integer.parseInt(torch.call("open", "server", 0, backend, 0, 60_000));
        }
        return TcpStore.builder().setHost("127.0.0.1").setPort(port).build();
    }

    @AfterEach
    void stopServer() {
        torch.call("close", "server");
        port = 0;
    }

    @Test
    void rankOfPyTorchReadsOurValues() {
        store.set("k", bytes("1"));
        assertEquals("1", text(TorchPeer.unhex(torch.call("get", "server", TorchPeer.hex("k")))));
        torch.call("set", "server", TorchPeer.hex("\u4e2d"), TorchPeer.hex("2"));
        assertEquals("2", text(store.get("\u4e2d")));
    }

    @Test
    void serverOfPyTorchCountsOurWorker() throws Exception {
        String free = torch.call("open", "probe", 0, backend, 0, 60_000);
        torch.call("close", "probe");
        torch.send("open", "waiting", free, backend, 2, 60_000);
        try (TcpStore worker =
                TcpStore.builder()
                        .setHost("127.0.0.1")
                        .setPort(Integer.parseInt(free))
                        .optWorldSize(2)
                        .optTimeout(Duration.ofSeconds(60))
                        .build()) {
            assertEquals(free, torch.result());
            assertEquals(1, worker.numKeys());
            assertMissing(List.of("k"), () -> worker.get("k", SHORT));
        }
        torch.call("close", "waiting");
    }

    /** On PyTorch's libuv server. */
    static final class LibUvTest extends TcpStoreOnTorchTest {
        LibUvTest() {
            super("libuv");
        }
    }

    /** On PyTorch's older server. */
    static final class PlainTest extends TcpStoreOnTorchTest {
        PlainTest() {
            super("plain");
        }

        @Override
        boolean compareSetWakes() {
            return false;
        }

        @Override
        boolean hasQueues() {
            return false;
        }

        @Test
        void queueErrorNamesAServerWithoutQueues() {
            CollectiveException e =
                    assertThrows(CollectiveException.class, () -> store.queueLength("q"));
            assertTrue(e.getMessage().contains("libuv"), e.getMessage());
        }
    }
}
