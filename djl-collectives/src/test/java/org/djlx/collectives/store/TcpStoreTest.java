// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.RefusingProxy;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class TcpStoreTest extends StoreContractTest {

    private TcpStore server = server(0).build();

    private static TcpStore.Builder server(int port) {
        return TcpStore.builder().setHost("localhost").setPort(port).optServer(true);
    }

    private TcpStore.Builder client() {
        return TcpStore.builder().setHost("localhost").setPort(server.port());
    }

    @Override
    Store open() {
        return client().build();
    }

    @AfterEach
    void stopServer() {
        server.close();
    }

    @Test
    void aPortCanBeChosenBySystem() {
        assertTrue(server.port() > 0);
        assertEquals("localhost", server.host());
        server.set("k", bytes("1"));
        assertEquals("1", text(store.get("k")));
    }

    @Test
    void waitForAQueueLeavesItsValueToAPop() throws Exception {
        Future<Boolean> wait = blocked(() -> waitFor("q"));
        Future<byte[]> pop = blocked(() -> other.queuePop("q", LONG));
        server.queuePush("q", bytes("v"));
        assertTrue(wait.get());
        assertEquals("v", text(pop.get()));
    }

    @Test
    void popAfterTheDeadlineLosesNoValue() throws Exception {
        try (RefusingProxy proxy = new RefusingProxy(server.port());
                Store slow =
                        TcpStore.builder().setHost("localhost").setPort(proxy.port()).build()) {
            Future<byte[]> pop = blocked(() -> popOrNull(slow, Duration.ofSeconds(2)));
            // The end of the wait, a byte, comes at once, and the value after the deadline.
            proxy.delayLonger(Duration.ofSeconds(3));
            server.queuePush("q", bytes("v"));
            byte[] value = pop.get();
            proxy.delayLonger(Duration.ZERO);
            assertEquals("v", text(value == null ? server.queuePop("q", SHORT) : value));
        }
    }

    private static byte[] popOrNull(Store store, Duration timeout) {
        try {
            return store.queuePop("q", timeout);
        } catch (StoreTimeoutException e) {
            return null;
        }
    }

    private boolean waitFor(String key) {
        store.waitFor(List.of(key), LONG);
        return true;
    }

    @Test
    void theServerWaitsForTheWorkers() throws Exception {
        int port = freePort();
        ExecutorService ranks = Executors.newCachedThreadPool();
        List<Future<TcpStore>> stores = new ArrayList<>();
        // The server comes last: clients retry until it is there.
        for (int rank = 3; rank >= 0; rank--) {
            TcpStore.Builder builder =
                    TcpStore.builder()
                            .setHost("127.0.0.1")
                            .setPort(port)
                            .optWorldSize(4)
                            .optServer(rank == 0);
            stores.add(ranks.submit(builder::build));
            Thread.sleep(20);
        }
        for (Future<TcpStore> s : stores) {
            assertEquals(1, s.get().numKeys(), "PyTorch counts the counter, too");
        }
        stores.forEach(s -> assertTrue(closed(s)));
        ranks.shutdown();
    }

    private static boolean closed(Future<TcpStore> store) {
        try {
            store.get().close();
            return true;
        } catch (InterruptedException | ExecutionException e) {
            return false;
        }
    }

    @Test
    void missingWorkersAreCounted() {
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () -> server(0).optWorldSize(3).optTimeout(SHORT).build());
        assertTrue(e.getMessage().contains("1 of 3 workers"), e.getMessage());
        try (TcpStore alone = server(0).optWorldSize(3).optWaitForWorkers(false).build()) {
            assertEquals(0, alone.numKeys());
        }
    }

    @Test
    void noServerIsAnErrorThatNamesIt() throws IOException {
        int port = freePort();
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                TcpStore.builder()
                                        .setHost("127.0.0.1")
                                        .setPort(port)
                                        .optTimeout(SHORT)
                                        .build());
        assertTrue(e.getMessage().contains("127.0.0.1:" + port), e.getMessage());
        CollectiveException taken =
                assertThrows(CollectiveException.class, () -> server(server.port()).build());
        assertTrue(taken.getMessage().contains("" + server.port()), taken.getMessage());
    }

    @Test
    void foreignServerOnThePortIsAnError() throws Exception {
        try (ServerSocket web = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            Thread answer =
                    new Thread(
                            () -> {
                                try (Socket s = web.accept()) {
                                    s.getOutputStream()
                                            .write(bytes("HTTP/1.1 400 Bad Request\r\n"));
                                    s.getInputStream().readAllBytes();
                                } catch (IOException e) {
                                    // The client hangs up.
                                }
                            });
            answer.setDaemon(true);
            answer.start();
            CollectiveException e =
                    assertThrows(
                            CollectiveException.class,
                            () ->
                                    TcpStore.builder()
                                            .setHost("localhost")
                                            .setPort(web.getLocalPort())
                                            .build());
            assertTrue(e.getMessage().contains("not a TCPStore server"), e.getMessage());
        }
    }

    @Test
    void whenTheServerStopsAllCallsFail() throws Exception {
        Future<byte[]> waiting = blocked(() -> store.get("never", LONG));
        int port = server.port();
        server.close();
        ExecutionException e = assertThrows(ExecutionException.class, waiting::get);
        assertServerGone(port, e.getCause());
        assertServerGone(
                port, assertThrows(RuntimeException.class, () -> store.check(List.of("k"))));
        assertServerGone(
                port, assertThrows(RuntimeException.class, () -> other.set("k", bytes("1"))));
        assertServerGone(port, assertThrows(RuntimeException.class, () -> other.get("k", LONG)));
    }

    @Test
    void aServerThatRestartsIsAnotherStore() {
        int port = server.port();
        store.set("k", bytes("old"));
        server.close();
        try (TcpStore restarted = server(port).build();
                TcpStore fresh = TcpStore.builder().setHost("localhost").setPort(port).build()) {
            restarted.set("k", bytes("new"));
            assertServerGone(port, assertThrows(RuntimeException.class, () -> store.get("k")));
            assertServerGone(port, assertThrows(RuntimeException.class, () -> store.add("n", 1)));
            assertEquals("new", text(fresh.get("k")));
        }
    }

    @Test
    void markDistinguishesServersOnOnePort() throws Exception {
        int port = server.port();
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () -> client().optMark("next").optTimeout(SHORT).build());
        assertTrue(e.getMessage().contains("the server of 'next'"), e.getMessage());
        ExecutorService rank = Executors.newSingleThreadExecutor();
        Future<TcpStore> waiting = rank.submit(() -> client().optMark("next").build());
        // Time for it to come to the old server; this test passes without, too.
        Thread.sleep(100);
        assertFalse(waiting.isDone());
        server.close();
        try (TcpStore next = server(port).optMark("next").build();
                TcpStore found = waiting.get()) {
            next.set("k", bytes("1"));
            assertEquals("1", text(found.get("k")));
        }
        rank.shutdown();
    }

    @Test
    void closeAfterOthersWaitsForOtherHandles() throws Exception {
        ExecutorService rank = Executors.newSingleThreadExecutor();
        Future<?> closing = rank.submit(() -> server.closeAfterOthers(LONG));
        // Its own handle goes first.
        assertThrows(
                CollectiveException.class,
                () -> {
                    while (true) {
                        server.numKeys();
                    }
                });
        // The server is there for the others, also for connections they have yet to open.
        Future<byte[]> waiting = blocked(() -> store.get("k", LONG));
        other.set("k", bytes("1"));
        assertEquals("1", text(waiting.get()));
        assertFalse(closing.isDone());
        store.close();
        other.close();
        closing.get();
        rank.shutdown();
    }

    @Test
    void closeAfterOthersEndsAtItsTimeout() {
        int port = server.port();
        server.closeAfterOthers(SHORT);
        assertServerGone(port, assertThrows(RuntimeException.class, () -> store.get("k")));
    }

    private static void assertServerGone(int port, Throwable e) {
        assertEquals(CollectiveException.class, e.getClass());
        assertTrue(e.getMessage().contains("localhost:" + port), e.getMessage());
        assertTrue(e.getMessage().contains("restart"), e.getMessage());
    }

    @Test
    void aClientThatDiesWhileItWaitsIsForgotten() throws Exception {
        Future<byte[]> doomed = blocked(() -> store.get("k", LONG));
        Future<byte[]> patient = blocked(() -> other.get("k", LONG));
        store.close();
        assertThrows(ExecutionException.class, doomed::get);
        server.set("k", bytes("1"));
        assertEquals("1", text(patient.get()));
    }

    @Test
    void invalidClientDoesNotDisturbOthers() throws IOException {
        for (String nonsense : List.of("GET / HTTP/1.1\r\n\r\n", "\0\0\0\0\0", "\377\376\375")) {
            try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), server.port())) {
                socket.getOutputStream().write(bytes(nonsense));
                assertEquals(-1, endOf(socket), "the server hangs up");
            }
        }
        store.set("k", bytes("1"));
        assertEquals("1", text(other.get("k")));
    }

    private static int endOf(Socket socket) {
        try {
            return new DataInputStream(socket.getInputStream()).read();
        } catch (IOException e) {
            return -1;
        }
    }

    @Test
    void serverRefusesWhatIsOverItsLimits() {
        try (TcpStore small =
                LimitedStore.limit(server(0), 3, 2, 1000)
                        .optTimeout(Duration.ofMillis(500))
                        .build()) {
            small.set("a", new byte[1000]);
            small.set("b", new byte[1]);
            small.set("b", new byte[2]);
            TcpStore.Builder builder =
                    TcpStore.builder()
                            .setHost("localhost")
                            .setPort(small.port())
                            .optTimeout(Duration.ofMillis(500));
            assertRefusedBy(builder, s -> s.set("c", new byte[0]));
            assertRefusedBy(builder, s -> s.add("c", 1));
            assertRefusedBy(builder, s -> s.append("c", new byte[0]));
            assertRefusedBy(builder, s -> s.compareSet("c", new byte[0], new byte[0]));
            assertRefusedBy(
                    builder, s -> s.multiSet(List.of("a", "c"), List.of(bytes("1"), bytes("2"))));
            assertRefusedBy(builder, s -> s.set("b", new byte[1001]));
            assertRefusedBy(builder, s -> s.append("a", new byte[1]));
            assertRefusedBy(builder, s -> s.set("k".repeat(9000), new byte[1]));
            assertRefusedBy(
                    builder,
                    s -> s.multiGet(IntStream.range(0, 20).mapToObj(i -> "a").toList(), LONG));
            assertEquals(1000, small.get("a").length);
            try (TcpStore second = builder.build();
                    TcpStore third = builder.build()) {
                CollectiveException e = assertThrows(CollectiveException.class, builder::build);
                assertTrue(e.getMessage().contains("" + small.port()), e.getMessage());
                assertEquals(2, second.numKeys());
                assertEquals(2, third.numKeys());
            }
        }
    }

    /** A server under a flood refuses a call, and the connections after it for a while. */
    @Test
    void aServerThatRefusesConnectionsForAWhileLeavesTheHandleUsable() throws Exception {
        try (RefusingProxy proxy = new RefusingProxy(((TcpStore) store).port());
                TcpStore client =
                        TcpStore.builder().setHost("localhost").setPort(proxy.port()).build()) {
            client.set("k", bytes("before"));
            proxy.refuse(true);
            for (int i = 0; i < 3; i++) {
                assertThrows(CollectiveException.class, () -> client.get("k", LONG));
            }
            proxy.refuse(false);
            assertArrayEquals(bytes("before"), client.get("k", LONG));
            client.set("k", bytes("after"));
            assertArrayEquals(bytes("after"), store.get("k", LONG));
        }
    }

    /** On a busy host a connection may take longer to open than a call is to wait. */
    @Test
    void waitTimesOutWhileItsConnectionIsOpening() throws Exception {
        try (RefusingProxy proxy = new RefusingProxy(((TcpStore) store).port());
                TcpStore client =
                        TcpStore.builder().setHost("localhost").setPort(proxy.port()).build()) {
            proxy.hold(true);
            StoreTimeoutException e =
                    assertThrows(
                            StoreTimeoutException.class,
                            () -> client.waitFor(List.of("k"), Duration.ofMillis(100)));
            assertEquals(List.of("k"), e.missingKeys());
            store.set("k", bytes("here"));
            client.waitFor(List.of("k"), Duration.ofMillis(100));
            proxy.hold(false);
            assertArrayEquals(bytes("here"), client.get("k", LONG));
        }
    }

    @Test
    void aCallThatIsRefusedLeavesTheHandleUsable() throws Exception {
        Future<byte[]> waiting = blocked(() -> store.get("later", LONG));
        store.set("k", bytes("before"));
        for (int i = 0; i < 3; i++) {
            CollectiveException e =
                    assertThrows(
                            CollectiveException.class, () -> store.set("k", new byte[9 << 20]));
            assertTrue(e.getMessage().contains("length of a value"), e.getMessage());
            assertTrue(e.getMessage().contains("stays usable"), e.getMessage());
            assertEquals("before", text(store.get("k")));
        }
        store.set("later", bytes("1"));
        assertEquals("1", text(waiting.get()));
    }

    @Test
    void memoryLimitCoversAllClients() throws Exception {
        try (TcpStore small = LimitedStore.maxBytes(server(0), 100_000).build()) {
            for (int i = 0; i < 100; i++) {
                small.set("k", new byte[40_000 + i]); // Replaced, it takes no more.
            }
            assertRefused("memory", () -> small.set("other", new byte[60_000]));
            assertRefused("memory", () -> small.append("k", new byte[30_000]));
            List<String> keys = IntStream.range(0, 1000).mapToObj(i -> "key" + i).toList();
            assertRefused("memory", () -> small.waitFor(keys, LONG));
            assertEquals(40_099, small.get("k").length);
            assertTrue(small.delete("k"));
            small.set("other", new byte[60_000]);
            assertEquals(60_000, small.get("other").length);
        }
    }

    private static void assertRefused(String limit, Executable call) {
        String message = assertThrows(CollectiveException.class, call).getMessage();
        assertTrue(message.contains(limit), message);
    }

    private static void assertRefusedBy(
            TcpStore.Builder builder, java.util.function.Consumer<Store> call) {
        try (TcpStore store = builder.build()) {
            CollectiveException e =
                    assertThrows(CollectiveException.class, () -> call.accept(store));
            assertTrue(e.getMessage().contains("rejected"), e.getMessage());
            assertTrue(e.getMessage().contains("number of keys"), e.getMessage());
        }
    }

    @Test
    @Tag("slow")
    void twoHundredConnectionsAndAHundredThousandOperations() throws Exception {
        int connections = 200;
        int rounds = 500;
        ExecutorService ranks = Executors.newFixedThreadPool(connections);
        CountDownLatch connected = new CountDownLatch(connections);
        List<Future<?>> done = new ArrayList<>();
        for (int rank = 0; rank < connections; rank++) {
            String own = "rank" + rank;
            done.add(
                    ranks.submit(
                            () -> {
                                try (TcpStore s = client().build()) {
                                    connected.countDown();
                                    connected.await();
                                    for (int i = 0; i < rounds; i++) {
                                        switch (i % 5) {
                                            case 0 -> s.set(own, bytes(own + i));
                                            case 1 -> assertEquals(own + (i - 1), text(s.get(own)));
                                            case 2 -> s.append(own, new byte[100]);
                                            case 3 -> assertTrue(s.check(List.of(own)));
                                            default -> s.add("sum", 1);
                                        }
                                    }
                                }
                                return null;
                            }));
        }
        for (Future<?> f : done) {
            f.get();
        }
        ranks.shutdown();
        assertEquals(connections * rounds / 5, store.add("sum", 0));
        assertEquals(connections + 1, store.numKeys());
    }

    @Test
    void theThreadsAreDaemonsWithNames() {
        List<Thread> threads =
                Thread.getAllStackTraces().keySet().stream()
                        .filter(t -> t.getName().startsWith("djlx-tcpstore"))
                        .toList();
        assertFalse(threads.isEmpty());
        threads.forEach(t -> assertTrue(t.isDaemon(), t.getName()));
    }

    @Test
    void aServerOpenToAllHostsIsReachedByItsName() throws IOException {
        try (TcpStore open = server(0).optBindAddress("0.0.0.0").build();
                TcpStore named =
                        TcpStore.builder()
                                .setHost(InetAddress.getLocalHost().getHostAddress())
                                .setPort(open.port())
                                .build()) {
            open.set("k", bytes("1"));
            assertEquals("1", text(named.get("k")));
        }
    }

    @Test
    void wrongSettingsAreRefused() {
        assertThrows(IllegalArgumentException.class, () -> TcpStore.builder().setPort(1).build());
        assertThrows(IllegalArgumentException.class, () -> TcpStore.builder().setHost("h").build());
        assertThrows(
                IllegalArgumentException.class,
                () -> TcpStore.builder().setHost("h").setPort(0).build());
        assertThrows(IllegalArgumentException.class, () -> TcpStore.builder().optWorldSize(0));
        assertThrows(
                IllegalArgumentException.class, () -> TcpStore.builder().optTimeout(Duration.ZERO));
        assertThrows(CollectiveException.class, () -> server(0).optBindAddress("no.such.").build());
        // The address is one for documents, which no host has.
        String foreign =
                assertThrows(
                                CollectiveException.class,
                                () -> server(0).optBindAddress("192.0.2.1").build())
                        .getMessage();
        assertTrue(foreign.contains("choose an address of this host"), foreign);
    }

    @Test
    void closingWhileInUseDoesNotHang() throws Exception {
        Future<Object> busy =
                blocked(
                        () -> {
                            while (true) {
                                store.add("n", 1);
                            }
                        });
        assertTimeoutPreemptively(Duration.ofSeconds(60), () -> store.close());
        ExecutionException e = assertThrows(ExecutionException.class, busy::get);
        assertTrue(e.getCause().getMessage().contains("closed"), e.getCause().getMessage());
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }
}
