// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.c10d.Expectation.Table;
import org.djlx.collectives.store.FileStore;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreTimeoutException;
import org.djlx.collectives.store.TcpStore;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What test_store.py expects of each of PyTorch's stores, of each of ours. */
@Timeout(120)
class StoreExpectationsTest {

    private static final Duration SHORT = Duration.ofMillis(50);
    private static final Duration LONG = Duration.ofSeconds(60);

    @TempDir Path directory;
    private int files;

    /** The assertions on one store, which is empty before. */
    @FunctionalInterface
    interface Body {
        void run(Store store);
    }

    private enum Kind {
        HASH,
        FILE,
        TCP,
        PREFIX_FILE,
        PREFIX_TCP
    }

    private Store underlying(Kind kind) {
        return switch (kind) {
            case HASH -> new HashStore();
            case FILE, PREFIX_FILE -> new FileStore(directory.resolve("store" + files++), 1);
            case TCP, PREFIX_TCP -> server();
        };
    }

    private static TcpStore server() {
        return TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build();
    }

    @TestFactory
    Stream<DynamicTest> expectations() {
        return rows().stream()
                .flatMap(
                        row ->
                                Arrays.stream(Kind.values())
                                        .map(
                                                kind ->
                                                        dynamicTest(
                                                                kind + " " + row.says(),
                                                                () -> run(row.body(), kind))));
    }

    private void run(Body body, Kind kind) {
        try (Store underlying = underlying(kind)) {
            boolean prefixed = kind.name().startsWith("PREFIX");
            body.run(prefixed ? new PrefixStore("test_prefix", underlying) : underlying);
        }
    }

    private static void set(Store store, String key, String value) {
        store.set(key, bytes(value));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static String get(Store store, String key) {
        return text(store.get(key, LONG));
    }

    private static String compareSet(Store store, String key, String expected, String desired) {
        return text(store.compareSet(key, bytes(expected), bytes(desired)));
    }

    static List<Expectation<Body>> rows() {
        Table<Body> table = Table.of("test_store.py");
        setAndGet(table);
        compareAndSet(table);
        several(table);
        queues(table);
        waits(table);
        numKeys(table);
        own(table);
        urls(table);
        return table.rows();
    }

    /** The calls of test_set_get. */
    private static Store filled(Store store) {
        for (int amount = 1; amount < 4; amount++) {
            store.add("key", amount);
        }
        for (int i = 0; i < 3; i++) {
            set(store, "key" + i, "value" + i);
        }
        for (int amount = 1; amount < 7; amount++) {
            store.add("key3", amount);
        }
        return store;
    }

    private static void setAndGet(Table<Body> table) {
        List<String> values =
                List.of("key 6", "key0 value0", "key1 value1", "key2 value2", "key3 21");
        for (String value : values) {
            String[] pair = value.split(" ");
            table.agrees(
                    "test_set_get",
                    pair[0] + " is " + pair[1],
                    store -> assertEquals(pair[1], get(filled(store), pair[0])));
        }
        table.agrees(
                "test_set_get",
                "-key3 is another key",
                store -> {
                    set(filled(store), "-key3", "7");
                    assertEquals("7", get(store, "-key3"));
                });
        table.agrees(
                "test_set_get",
                "HashStore has 5 keys",
                store -> assertEquals(5, filled(store).numKeys()));
        table.differs(
                "test_set_get",
                "FileStore and TCPStore have a key of their own: 6",
                "5: only those that were set; a TcpStore for a number of workers has one more",
                "counts of handles and workers are no keys of the caller",
                store -> assertEquals(5, filled(store).numKeys()));
        table.agrees(
                "test_set_get",
                "a deleted key does not count",
                store -> {
                    set(filled(store), "-key3", "7");
                    store.delete("-key3");
                    assertEquals(5, store.numKeys());
                });
    }

    private static void compareAndSet(Table<Body> table) {
        String test = "test_compare_set";
        table.agrees(
                test,
                "an unset key with an expected value: that value is returned",
                store -> assertEquals("wrong", compareSet(store, "cs_key0", "wrong", "new")));
        table.agrees(
                test,
                "another value is expected: the old value is returned",
                store -> {
                    set(store, "cs_key0", "value0");
                    assertEquals("value0", compareSet(store, "cs_key0", "wrong", "new"));
                });
        table.agrees(
                test,
                "another value is expected: the old value stays",
                store -> {
                    set(store, "cs_key0", "value0");
                    compareSet(store, "cs_key0", "wrong", "new");
                    assertEquals("value0", get(store, "cs_key0"));
                });
        table.agrees(
                test,
                "the value is expected: the new value is returned",
                store -> {
                    set(store, "cs_key0", "value0");
                    assertEquals("new", compareSet(store, "cs_key0", "value0", "new"));
                });
        table.agrees(
                test,
                "the value is expected: the new value is set",
                store -> {
                    set(store, "cs_key0", "value0");
                    compareSet(store, "cs_key0", "value0", "new");
                    assertEquals("new", get(store, "cs_key0"));
                });
        table.agrees(
                test,
                "an unset key and no expected value: the new value is returned",
                store -> assertEquals("new", compareSet(store, "cs_key1", "", "new")));
        table.agrees(
                test,
                "an unset key and no expected value: the new value is set",
                store -> {
                    compareSet(store, "cs_key1", "", "new");
                    assertEquals("new", get(store, "cs_key1"));
                });
    }

    private static void several(Table<Body> table) {
        for (String key : List.of("foo", "bar")) {
            table.agrees(
                    "test_append",
                    key + " is po and tato",
                    store -> {
                        if (key.equals("foo")) {
                            set(store, key, "po");
                        } else {
                            store.append(key, bytes("po"));
                        }
                        store.append(key, bytes("tato"));
                        assertEquals("potato", get(store, key));
                    });
            int index = key.equals("foo") ? 0 : 1;
            List<String> keys = List.of("foo", "bar");
            List<byte[]> values = List.of(bytes("po"), bytes("tato"));
            table.agrees(
                    "test_multi_set",
                    key + " is set",
                    store -> {
                        store.multiSet(keys, values);
                        assertEquals(text(values.get(index)), get(store, key));
                    });
            table.agrees(
                    "test_multi_get",
                    key + " is read",
                    store -> {
                        store.set("foo", values.get(0));
                        store.set("bar", values.get(1));
                        byte[] got = store.multiGet(keys, LONG).get(index);
                        assertEquals(text(values.get(index)), text(got));
                    });
        }
        table.agrees(
                "test_clone",
                "a clone reads what was set",
                store -> {
                    try (Store clone = store.newHandle()) {
                        set(store, "foo", "bar");
                        assertEquals("bar", get(clone, "foo"));
                    }
                });
    }

    private static void queues(Table<Body> table) {
        table.agrees(
                "test_queues",
                "a queue without values is not set and has length 0",
                store -> {
                    assertFalse(store.check(List.of("foo")));
                    assertEquals(0, store.queueLength("foo"));
                });
        table.agrees(
                "test_queues",
                "with two values it is set and has length 2",
                store -> {
                    push(store, "1", "2");
                    assertTrue(store.check(List.of("foo")));
                    assertEquals(2, store.queueLength("foo"));
                    store.waitFor(List.of("foo"), LONG);
                });
        table.agrees(
                "test_queues",
                "values come in the order of the pushes",
                store -> {
                    push(store, "1", "2");
                    assertEquals("1", text(store.queuePop("foo", LONG)));
                    assertEquals("2", text(store.queuePop("foo", LONG)));
                });
        table.agrees(
                "test_queues",
                "after the last value it is not set",
                store -> {
                    push(store, "1");
                    store.queuePop("foo", LONG);
                    assertFalse(store.check(List.of("foo")));
                    assertEquals(0, store.queueLength("foo"));
                });
        table.agrees(
                "test_queues_nonblocking",
                "without a wait an empty queue throws",
                store ->
                        assertThrows(
                                StoreTimeoutException.class,
                                () -> store.queuePop("foo", Duration.ZERO)));
        table.agrees(
                "test_queues_nonblocking",
                "without a wait a value is returned",
                store -> {
                    push(store, "a");
                    assertEquals("a", text(store.queuePop("foo", Duration.ZERO)));
                });
        table.agrees(
                "test_queues_bidirectional",
                "two clones send to each other",
                store -> {
                    try (Store clone = store.newHandle()) {
                        CompletableFuture<String> answer =
                                CompletableFuture.supplyAsync(
                                        () -> {
                                            String got = text(clone.queuePop("a", LONG));
                                            clone.queuePush("b", bytes("b1"));
                                            return got;
                                        });
                        store.queuePush("a", bytes("a1"));
                        assertEquals("b1", text(store.queuePop("b", LONG)));
                        assertEquals("a1", answer.join());
                    }
                });
        table.agrees(
                "test_queues_timeout",
                "a wait for a value times out",
                store ->
                        assertThrows(
                                StoreTimeoutException.class, () -> store.queuePop("foo", SHORT)));
    }

    private static void push(Store store, String... values) {
        for (String value : values) {
            store.queuePush("foo", bytes(value));
        }
    }

    private static void waits(Table<Body> table) {
        table.agrees(
                "test_simple_wait",
                "a wait for an unset key times out",
                store ->
                        assertThrows(
                                StoreTimeoutException.class,
                                () -> store.waitFor(List.of("bad_key"), SHORT)));
        table.agrees(
                "test_simple_wait",
                "a wait for a key that add has set returns",
                store -> {
                    store.add("good_key", 1);
                    store.waitFor(List.of("good_key"), LONG);
                });
        table.agrees(
                "TestMultiThreadedWait",
                "a thread waits for a key that another sets",
                store -> {
                    CompletableFuture<String> waiting =
                            CompletableFuture.supplyAsync(() -> get(store, "key1"));
                    set(store, "key1", "value1");
                    assertEquals("value1", waiting.join());
                });
        table.agrees(
                "test_tcp_store_timeout_set",
                "the error names the missing key",
                store -> {
                    String message =
                            assertThrows(
                                            StoreTimeoutException.class,
                                            () -> store.get("nonexistent key", SHORT))
                                    .getMessage();
                    assertTrue(message.contains("nonexistent key"), message);
                });
        table.agrees(
                "test_tcp_store_timeout_doest_break_client",
                "after a timeout the store is usable",
                store -> {
                    assertThrows(StoreTimeoutException.class, () -> store.get("the_key", SHORT));
                    set(store, "the_key", "x");
                    assertEquals("x", get(store, "the_key"));
                });
        table.differs(
                "test_tcp_store_timeout_set",
                "set_timeout changes the timeout of later calls",
                "a call takes its timeout, or that of the handle",
                "threads of a rank share the handle",
                store -> assertThrows(StoreTimeoutException.class, () -> store.get("lost", SHORT)));
    }

    private static void numKeys(Table<Body> table) {
        String test = "test_numkeys_delkeys";
        table.agrees(
                test,
                "two counters and two keys are 4 keys",
                store -> assertEquals(4, four(store).numKeys()));
        table.agrees(
                test,
                "after a delete there are 3",
                store -> {
                    four(store).delete("key");
                    assertEquals(3, store.numKeys());
                });
        table.agrees(
                test,
                "a deleted key is missing",
                store -> {
                    four(store).delete("key");
                    assertThrows(StoreTimeoutException.class, () -> store.get("key", SHORT));
                });
        table.agrees(
                test,
                "after two more there is 1",
                store -> {
                    for (String key : List.of("key", "key0", "key3")) {
                        four(store).delete(key);
                    }
                    store.delete("key");
                    store.delete("key0");
                    assertEquals(1, store.numKeys());
                });
        table.agrees(
                test,
                "a new key counts, and the old ones are read",
                store -> {
                    set(four(store), "key4", "value2");
                    assertEquals(5, store.numKeys());
                    assertEquals("value1", get(store, "key1"));
                    assertEquals("value2", get(store, "key4"));
                });
    }

    private static Store four(Store store) {
        store.add("key", 1);
        store.add("key", 2);
        set(store, "key0", "value0");
        store.add("key3", 1);
        set(store, "key1", "value1");
        return store;
    }

    /** Rows of one kind of store; each makes its own. */
    private static void own(Table<Body> table) {
        table.differs(
                "test_refcount",
                "the file is deleted with the last handle in the process",
                "with as many closed handles as the world size",
                "handles of other processes count",
                store -> {
                    Path path = temporary();
                    FileStore first = new FileStore(path, 2);
                    FileStore second = new FileStore(path, 2);
                    first.close();
                    assertTrue(Files.exists(path));
                    second.close();
                    assertFalse(Files.exists(path));
                });
        table.differs(
                "test_get_underlying_store",
                "a prefix store returns the store below",
                "no accessor",
                "the caller of the constructor has it",
                store -> {
                    set(new PrefixStore("prefix", store), "k", "v");
                    assertEquals("v", get(store, "prefix/k"));
                });
        table.agrees(
                "test_get_underlying_store",
                "a prefix without a store is refused",
                store ->
                        assertThrows(
                                IllegalArgumentException.class,
                                () -> new PrefixStore("prefix", null)));
        table.agrees(
                "test_address_already_in_use",
                "a second server on a port fails and names it",
                store -> {
                    try (TcpStore first = server()) {
                        String message =
                                assertThrows(CollectiveException.class, () -> again(first))
                                        .getMessage();
                        assertTrue(message.contains("" + first.port()), message);
                    }
                });
        table.differs(
                "test_multitenancy",
                "two servers of a process share a port",
                "the second fails: pass the store to both users",
                "a PrefixStore for each user keeps their keys apart",
                store -> {
                    try (TcpStore first = server()) {
                        assertThrows(CollectiveException.class, () -> again(first));
                    }
                });
        table.agrees(
                "test_multi_worker_with_nonfixed_world_size",
                "a client reads what the server's handle set, and compares",
                store -> {
                    try (TcpStore server = server();
                            TcpStore client =
                                    TcpStore.builder()
                                            .setHost("localhost")
                                            .setPort(server.port())
                                            .build()) {
                        set(server, "key", "value");
                        assertEquals("value", get(client, "key"));
                        set(client, "new_key0", "new_value0");
                        assertEquals(
                                "next_value0",
                                compareSet(client, "new_key0", "new_value0", "next_value0"));
                    }
                });
        table.agrees(
                "test_repr",
                "a store's text has its address",
                store -> {
                    try (TcpStore server = server()) {
                        assertTrue(server.toString().endsWith(":" + server.port()));
                    }
                });
        table.agrees(
                "test_store_timeout_on_missing_clients",
                "a server for two workers times out with one, and counts",
                store -> {
                    String message =
                            assertThrows(
                                            CollectiveException.class,
                                            () -> ofTwo(Duration.ofSeconds(3)).build())
                                    .getMessage();
                    assertTrue(message.contains("1 of 2"), message);
                });
        table.agrees(
                "test_store_timeout_on_missing_clients",
                "without waiting it does not",
                store -> ofTwo(LONG).optWaitForWorkers(false).build().close());
        prefixes(table);
    }

    private static TcpStore.Builder ofTwo(Duration timeout) {
        return TcpStore.builder()
                .setHost("localhost")
                .setPort(0)
                .optServer(true)
                .optWorldSize(2)
                .optTimeout(timeout);
    }

    private static void again(TcpStore first) {
        TcpStore.builder()
                .setHost("localhost")
                .setPort(first.port())
                .optServer(true)
                .build()
                .close();
    }

    private static Path temporary() {
        try {
            Path path = Files.createTempFile("c10d", "store");
            Files.delete(path);
            return path;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void prefixes(Table<Body> table) {
        table.agrees(
                "test_append_roundtrip",
                "an append through a prefix reaches the store below",
                store -> {
                    new PrefixStore("p", store).append("foo", bytes("bar"));
                    assertEquals("bar", get(store, "p/foo"));
                });
        table.agrees(
                "test_multi_get_roundtrip",
                "a read of two keys through a prefix",
                store -> {
                    set(store, "p/foo", "x");
                    set(store, "p/bar", "y");
                    List<byte[]> got =
                            new PrefixStore("p", store).multiGet(List.of("foo", "bar"), LONG);
                    assertEquals("x", text(got.get(0)));
                    assertEquals("y", text(got.get(1)));
                });
        table.agrees(
                "test_multi_set_roundtrip",
                "a write of two keys through a prefix",
                store -> {
                    List<byte[]> values = List.of(bytes("x"), bytes("y"));
                    new PrefixStore("p", store).multiSet(List.of("foo", "bar"), values);
                    assertEquals("x", get(store, "p/foo"));
                    assertEquals("y", get(store, "p/bar"));
                });
    }

    private static void urls(Table<Body> table) {
        for (String says :
                List.of(
                        "`invalid://` is refused",
                        "`file://` without a path is refused",
                        "`file://` without a rank is refused",
                        "`file://` without a world size is refused",
                        "`tcp://` without a port is refused",
                        "`tcp://` without a rank is refused",
                        "`tcp://` without a world size is refused")) {
            table.differs(
                    "RendezvousTest.test_common_errors",
                    says,
                    "a builder or constructor without it is refused",
                    "there are no URLs",
                    store -> {
                        assertThrows(
                                IllegalArgumentException.class,
                                () -> TcpStore.builder().setHost("localhost").build());
                        assertThrows(IllegalArgumentException.class, () -> new FileStore(null, 1));
                        assertThrows(
                                IllegalArgumentException.class,
                                () -> new FileStore(Path.of("x"), 0));
                    });
        }
    }
}
