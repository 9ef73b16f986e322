// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The contract of all stores. */
@Timeout(120)
abstract class StoreContractTest {

    /** Long enough never to be reached. */
    static final Duration LONG = Duration.ofSeconds(60);

    /** Short enough to be waited for. */
    static final Duration SHORT = Duration.ofMillis(100);

    private ExecutorService threads;

    /** Two handles on one store; the same object if a store has only one. */
    Store store;

    Store other;

    /** Opens a handle on the store under test, which is empty at the beginning of a test. */
    abstract Store open() throws Exception;

    /** Closes a handle, or its underlying store. */
    void close(Store handle) throws Exception {
        handle.close();
    }

    /** Returns how many keys the store has that no test has set. */
    long keysOfItsOwn() {
        return 0;
    }

    @BeforeEach
    void openStores() throws Exception {
        threads = Executors.newCachedThreadPool();
        store = open();
        other = open();
    }

    @AfterEach
    void closeStores() throws Exception {
        close(store);
        close(other);
        threads.shutdownNow();
    }

    @Test
    void setReplacesAndGetReturns() {
        store.set("k", bytes("one"));
        assertEquals("one", text(store.get("k")));
        assertEquals("one", text(other.get("k", LONG)));
        store.set("k", bytes("two"));
        assertEquals("two", text(store.get("k")));
        assertEquals("two", text(other.get("k")));
    }

    @Test
    void valuesAreAnyBytes() {
        byte[] all = new byte[256];
        IntStream.range(0, 256).forEach(i -> all[i] = (byte) i);
        store.set("all", all);
        store.set("empty", new byte[0]);
        assertArrayEquals(all, other.get("all", LONG));
        assertArrayEquals(new byte[0], other.get("empty", LONG));
        assertTrue(store.check(List.of("all", "empty")));
    }

    @Test
    void valuesMayBeSeveralMegabytes() {
        byte[] big = new byte[5_000_001];
        new Random(1).nextBytes(big);
        store.set("big", big);
        assertArrayEquals(big, other.get("big", LONG));
        assertArrayEquals(
                big, store.compareSet("big", big, bytes("small")).length == 5 ? big : null);
        store.multiSet(List.of("a", "b"), List.of(big, big));
        List<byte[]> both = other.multiGet(List.of("a", "b"), LONG);
        assertArrayEquals(big, both.get(0));
        assertArrayEquals(big, both.get(1));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "a",
                "/",
                "//a/",
                "init/",
                "-x",
                " ",
                "a b",
                "tab\there",
                "line\nbreak",
                "nul\0nul",
                "\u00e9",
                "\u4e2d\u6587",
                "\ud83d\ude00",
                "%s{}",
                "\"quoted\""
            })
    void keysAreAnyText(String key) {
        store.set(key, bytes(key));
        assertEquals(key, text(other.get(key, LONG)));
        assertTrue(other.check(List.of(key)));
        assertEquals(keysOfItsOwn() + 1, store.numKeys());
        assertTrue(other.delete(key));
        assertFalse(store.check(List.of(key)));
    }

    @Test
    void arraysAreNotShared() {
        byte[] mine = bytes("abc");
        store.set("k", mine);
        mine[0] = 'x';
        byte[] got = store.get("k");
        assertEquals("abc", text(got));
        got[1] = 'x';
        assertEquals("abc", text(store.get("k")));
        byte[] desired = bytes("def");
        byte[] now = store.compareSet("k", bytes("abc"), desired);
        desired[0] = 'x';
        now[1] = 'x';
        assertEquals("def", text(store.get("k")));
    }

    @Test
    void addCountsInDecimal() {
        assertEquals(3, store.add("n", 3));
        assertEquals(1, other.add("n", -2));
        assertEquals(1, store.add("n", 0));
        assertEquals("1", text(store.get("n")));
        store.set("n", bytes("-5"));
        assertEquals(-4, other.add("n", 1));
        store.add("big", Long.MAX_VALUE);
        assertEquals(Long.toString(Long.MAX_VALUE), text(store.get("big")));
        assertEquals(0, store.add("zero", 0));
        assertTrue(store.check(List.of("zero")));
    }

    @Test
    void addRefusesValuesThatAreNoCounter() {
        store.set("text", bytes("twelve"));
        IllegalArgumentException e =
                assertThrows(IllegalArgumentException.class, () -> store.add("text", 1));
        assertTrue(e.getMessage().contains("text"), e.getMessage());
        assertEquals("twelve", text(store.get("text")));
        assertEquals("twelve", text(other.get("text")));
    }

    @Test
    void compareSetIsThatOfC10d() {
        assertEquals("expected", text(store.compareSet("k", bytes("expected"), bytes("new"))));
        assertFalse(store.check(List.of("k")), "an unset key is set only if nothing is expected");
        assertEquals("one", text(store.compareSet("k", bytes(""), bytes("one"))));
        assertEquals("one", text(other.compareSet("k", bytes(""), bytes("two"))));
        assertEquals("one", text(other.compareSet("k", bytes("two"), bytes("three"))));
        assertEquals("two", text(other.compareSet("k", bytes("one"), bytes("two"))));
        assertEquals("two", text(store.get("k")));
        store.set("empty", bytes(""));
        assertEquals("full", text(store.compareSet("empty", bytes(""), bytes("full"))));
    }

    @Test
    void appendAddsBytesToTheEndOfTheValue() {
        store.append("k", bytes("a"));
        other.append("k", bytes(""));
        other.append("k", bytes("bc"));
        assertEquals("abc", text(store.get("k")));
        store.set("n", bytes("1"));
        store.append("n", bytes("0"));
        assertEquals(11, store.add("n", 1));
    }

    @Test
    void checkDoesNotWait() {
        assertTrue(store.check(List.of()));
        assertFalse(store.check(List.of("a")));
        store.set("a", bytes("1"));
        assertTrue(other.check(List.of("a")));
        assertFalse(other.check(List.of("a", "b")));
        assertTrue(other.check(List.of("a", "a")));
    }

    @Test
    void deleteTellsWhetherTheKeyWasSet() {
        assertFalse(store.delete("k"));
        store.set("k", bytes("1"));
        assertTrue(other.delete("k"));
        assertFalse(other.delete("k"));
        assertFalse(store.check(List.of("k")));
        assertThrows(StoreTimeoutException.class, () -> store.get("k", SHORT));
        assertEquals(5, store.add("k", 5), "a deleted counter starts anew");
    }

    @Test
    void numKeysCountsKeys() {
        long own = keysOfItsOwn();
        assertEquals(own, store.numKeys());
        store.set("a", bytes("1"));
        store.set("a", bytes("2"));
        store.add("b", 1);
        other.append("c", bytes("3"));
        assertEquals(own + 3, store.numKeys());
        other.delete("a");
        assertEquals(own + 2, other.numKeys());
    }

    @Test
    void multiSetAndMultiGetKeepTheOrder() {
        store.multiSet(List.of("a", "b", "c"), List.of(bytes("1"), bytes(""), bytes("3")));
        List<String> got =
                other.multiGet(List.of("c", "a", "b", "a"), LONG).stream()
                        .map(StoreContractTest::text)
                        .toList();
        assertEquals(List.of("3", "1", "", "1"), got);
        store.multiSet(List.of(), List.of());
        assertEquals(List.of(), store.multiGet(List.of(), LONG));
    }

    @Test
    void listKeysListsTheKeysOfUsers() {
        assertEquals(List.of(), store.listKeys());
        store.set("a", bytes("1"));
        store.add("/\u4e2d", 1);
        assertEquals(List.of("/\u4e2d", "a"), other.listKeys().stream().sorted().toList());
        store.delete("a");
        assertEquals(List.of("/\u4e2d"), store.listKeys());
    }

    /** PyTorch's plain server has none. */
    boolean hasQueues() {
        return true;
    }

    @Test
    void queueReturnsItsValuesInOrder() {
        assumeTrue(hasQueues());
        assertEquals(0, store.queueLength("q"));
        store.queuePush("q", bytes("one"));
        other.queuePush("q", bytes(""));
        store.queuePush("q2", new byte[5_000_001]);
        assertEquals(2, other.queueLength("q"));
        assertEquals("one", text(other.queuePop("q", Duration.ZERO)));
        assertEquals("", text(store.queuePop("q")));
        assertEquals(5_000_001, other.queuePop("q2", LONG).length);
        for (Duration timeout : List.of(Duration.ZERO, SHORT)) {
            StoreTimeoutException e =
                    assertThrows(StoreTimeoutException.class, () -> store.queuePop("q", timeout));
            assertEquals(List.of("q"), e.missingKeys());
            assertTrue(e.getMessage().contains("queue \""), e.getMessage());
        }
        assertEquals(0, other.queueLength("q"));
    }

    @Test
    void queueIsNoKeyButEndsWaits() {
        assumeTrue(hasQueues());
        store.queuePush("q", bytes("1"));
        assertEquals(keysOfItsOwn(), store.numKeys());
        assertEquals(List.of(), store.listKeys());
        assertFalse(store.delete("q"));
        assertTrue(other.check(List.of("q")));
        other.waitFor(List.of("q"), Duration.ZERO);
        assertEquals("", text(other.get("q", Duration.ZERO)));
        assertEquals("", text(other.multiGet(List.of("q"), Duration.ZERO).get(0)));
        assertEquals("1", text(store.queuePop("q")));
        assertFalse(other.check(List.of("q")));
    }

    @Test
    void pushEndsAPop() throws Exception {
        assumeTrue(hasQueues());
        List<Future<byte[]>> pops = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Store handle = i % 2 == 0 ? store : other;
            pops.add(blocked(() -> handle.queuePop("q", LONG)));
        }
        for (int i = 0; i < 4; i++) {
            store.queuePush("q", bytes("v" + i));
        }
        List<String> got = new ArrayList<>();
        for (Future<byte[]> pop : pops) {
            got.add(text(pop.get()));
        }
        assertEquals(List.of("v0", "v1", "v2", "v3"), got.stream().sorted().toList());
    }

    @Test
    void everyValueOfAQueueIsPoppedOnce() throws Exception {
        assumeTrue(hasQueues());
        int values = 100;
        List<Future<Integer>> sums = new ArrayList<>();
        for (int t = 0; t < 4; t++) {
            Store handle = t % 2 == 0 ? store : other;
            sums.add(
                    threads.submit(
                            () -> {
                                int sum = 0;
                                String value = text(handle.queuePop("q", LONG));
                                while (!value.equals("end")) {
                                    sum += Integer.parseInt(value);
                                    value = text(handle.queuePop("q", LONG));
                                }
                                return sum;
                            }));
        }
        for (int i = 1; i <= values; i++) {
            (i % 2 == 0 ? store : other).queuePush("q", bytes("" + i));
        }
        sums.forEach(s -> store.queuePush("q", bytes("end")));
        int sum = 0;
        for (Future<Integer> s : sums) {
            sum += s.get();
        }
        assertEquals(values * (values + 1) / 2, sum);
        assertEquals(0, store.queueLength("q"));
    }

    @Test
    void newHandleSeesTheSameStoreAndIsClosedAlone() {
        Store handle = store.newHandle();
        handle.set("k", bytes("1"));
        assertEquals("1", text(store.get("k")));
        assertEquals(store.timeout(), handle.timeout());
        handle.close();
        handle.close();
        assertEquals("1", text(store.get("k")));
    }

    @Test
    void manyKeysAtOnce() {
        List<String> keys = IntStream.range(0, 5000).mapToObj(i -> "key" + i).toList();
        store.multiSet(keys, keys.stream().map(StoreContractTest::bytes).toList());
        assertTrue(other.check(keys));
        assertEquals(keys, other.multiGet(keys, LONG).stream().map(b -> text(b)).toList());
        List<String> more = new ArrayList<>(keys);
        more.add("missing");
        StoreTimeoutException e =
                assertThrows(StoreTimeoutException.class, () -> other.waitFor(more, Duration.ZERO));
        assertEquals(List.of("missing"), e.missingKeys());
    }

    @Test
    void timeoutsNameTheMissingKeys() {
        store.set("there", bytes("1"));
        List<String> keys = List.of("there", "gone", "lost", "gone");
        for (Duration timeout : List.of(Duration.ZERO, SHORT)) {
            assertMissing(List.of("gone", "lost"), () -> store.waitFor(keys, timeout));
            assertMissing(List.of("gone", "lost"), () -> store.multiGet(keys, timeout));
            assertMissing(List.of("lost"), () -> store.get("lost", timeout));
        }
        assertEquals("1", text(store.get("there", Duration.ZERO)));
        store.waitFor(List.of("there"), Duration.ZERO);
        store.waitFor(List.of(), Duration.ZERO);
        assertTrue(store.timeout().compareTo(Duration.ZERO) > 0);
    }

    @Test
    void aTimeoutMayBeEndless() throws Exception {
        Duration endless = ChronoUnit.FOREVER.getDuration();
        Future<byte[]> got = blocked(() -> store.get("k", endless));
        other.set("k", bytes("1"));
        assertEquals("1", text(got.get()));
    }

    @Test
    void waitsCanFollowWaitsThatTimedOut() throws Exception {
        for (int i = 0; i < 5; i++) {
            String key = "k" + i;
            assertMissing(List.of(key), () -> store.get(key, SHORT));
            Future<byte[]> got = blocked(() -> store.get(key, LONG));
            other.set(key, bytes("v" + i));
            assertEquals("v" + i, text(got.get()));
        }
    }

    @Test
    void everyWayToSetAKeyWakesWaits() throws Exception {
        assertWakes("set", () -> other.set("set", bytes("1")));
        assertWakes("add", () -> other.add("add", 1));
        assertWakes("append", () -> other.append("append", bytes("1")));
        assertWakes("multiSet", () -> other.multiSet(List.of("x", "multiSet"), values(2)));
        if (compareSetWakes()) {
            assertWakes("cas", () -> other.compareSet("cas", bytes(""), bytes("1")));
        }
    }

    /** PyTorch's plain server forgets to. */
    boolean compareSetWakes() {
        return true;
    }

    @Test
    void aWaitLastsUntilAllKeysAreSet() throws Exception {
        store.set("b", bytes("2"));
        Future<List<byte[]>> got = blocked(() -> store.multiGet(List.of("a", "b", "c"), LONG));
        other.set("a", bytes("1"));
        other.set("unrelated", bytes("0"));
        assertFalse(got.isDone());
        other.set("c", bytes("3"));
        assertEquals(List.of("1", "2", "3"), got.get().stream().map(b -> text(b)).toList());
    }

    @Test
    void waitDoesNotBlockOtherThreadsOfTheHandle() throws Exception {
        List<Future<byte[]>> waits = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            String key = "w" + i;
            waits.add(blocked(() -> store.get(key, LONG)));
        }
        store.set("k", bytes("1"));
        assertEquals("1", text(store.get("k")));
        for (int i = 0; i < 20; i++) {
            store.set("w" + i, bytes("v" + i));
        }
        for (int i = 0; i < 20; i++) {
            assertEquals("v" + i, text(waits.get(i).get()));
        }
    }

    @Test
    void aBlockedWaitUsesNoCpu() throws Exception {
        AtomicReference<Thread> waiter = new AtomicReference<>();
        Future<byte[]> got =
                blocked(
                        () -> {
                            waiter.set(Thread.currentThread());
                            return store.get("k", LONG);
                        });
        long id = waiter.get().getId();
        long before = ManagementFactory.getThreadMXBean().getThreadCpuTime(id);
        Thread.sleep(500);
        long used = ManagementFactory.getThreadMXBean().getThreadCpuTime(id) - before;
        other.set("k", bytes("1"));
        got.get();
        assertTrue(used < 250_000_000, used + " ns of CPU time in a wait of 500 ms");
    }

    @Test
    void addsOfManyThreadsAddUp() throws Exception {
        int perThread = 50;
        List<Future<?>> done = new ArrayList<>();
        for (int t = 0; t < 8; t++) {
            Store handle = t % 2 == 0 ? store : other;
            done.add(
                    threads.submit(
                            () -> {
                                for (int i = 0; i < perThread; i++) {
                                    handle.add("sum", i % 2 == 0 ? 3 : -1);
                                    handle.append("log", bytes("x"));
                                }
                            }));
        }
        for (Future<?> f : done) {
            f.get();
        }
        assertEquals(8 * perThread, store.add("sum", 0));
        assertEquals(8 * perThread, other.get("log").length);
    }

    @Test
    void exactlyOneThreadWinsACompareSet() throws Exception {
        List<Future<String>> results = new ArrayList<>();
        for (int t = 0; t < 8; t++) {
            Store handle = t % 2 == 0 ? store : other;
            byte[] mine = bytes("thread" + t);
            results.add(threads.submit(() -> text(handle.compareSet("leader", bytes(""), mine))));
        }
        String leader = text(store.get("leader"));
        for (Future<String> result : results) {
            assertEquals(leader, result.get());
        }
    }

    @Test
    void interruptEndsOneWaitOnly() throws Exception {
        AtomicReference<Thread> waiter = new AtomicReference<>();
        Future<Boolean> flag =
                blocked(
                        () -> {
                            waiter.set(Thread.currentThread());
                            CollectiveException e =
                                    assertThrows(
                                            CollectiveException.class, () -> store.get("k", LONG));
                            assertTrue(e.getMessage().contains("interrupted"), e.getMessage());
                            // A call that does not wait is not affected.
                            store.set("after", bytes("1"));
                            return Thread.interrupted();
                        });
        waiter.get().interrupt();
        assertTrue(flag.get(), "the interrupt flag stays set");
        assertTrue(store.check(List.of("after")));
        assertMissing(List.of("k"), () -> store.get("k", SHORT));
    }

    @Test
    void closingEndsWaits() throws Exception {
        Future<byte[]> got = blocked(() -> store.get("k", LONG));
        close(store);
        ExecutionException e = assertThrows(ExecutionException.class, got::get);
        assertEquals(CollectiveException.class, e.getCause().getClass());
        assertTrue(e.getCause().getMessage().contains("closed"), e.getCause().getMessage());
        close(store);
        CollectiveException late =
                assertThrows(CollectiveException.class, () -> store.set("k", bytes("1")));
        assertTrue(late.getMessage().contains("closed"), late.getMessage());
    }

    @Test
    void wrongArgumentsAreRefused() {
        byte[] v = bytes("1");
        assertRefused(() -> store.set("", v));
        assertRefused(() -> store.set(null, v));
        assertRefused(() -> store.set("k", null));
        assertRefused(() -> store.set("half \ud83d", v));
        assertRefused(() -> store.get("", SHORT));
        assertRefused(() -> store.get("k", Duration.ofMillis(-1)));
        assertRefused(() -> store.get("k", null));
        assertRefused(() -> store.add("", 1));
        assertRefused(() -> store.append("k", null));
        assertRefused(() -> store.compareSet("k", null, v));
        assertRefused(() -> store.compareSet("k", v, null));
        assertRefused(() -> store.check(List.of("a", "")));
        assertRefused(() -> store.waitFor(List.of(""), SHORT));
        assertRefused(() -> store.multiGet(List.of(""), SHORT));
        assertRefused(() -> store.multiSet(List.of("a"), List.of()));
        assertRefused(() -> store.delete(""));
        assertRefused(() -> store.queuePush("", v));
        assertRefused(() -> store.queuePush("q", null));
        assertRefused(() -> store.queuePop("q", null));
        assertRefused(() -> store.queueLength(""));
        assertEquals(keysOfItsOwn(), store.numKeys());
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static List<byte[]> values(int count) {
        return IntStream.range(0, count).mapToObj(i -> bytes("v" + i)).toList();
    }

    /** Starts something that blocks, and returns when its thread waits. */
    <T> Future<T> blocked(Callable<T> action) throws InterruptedException {
        AtomicReference<Thread> thread = new AtomicReference<>();
        Future<T> result =
                threads.submit(
                        () -> {
                            thread.set(Thread.currentThread());
                            return action.call();
                        });
        while (thread.get() == null) {
            Thread.sleep(1);
        }
        // A thread in a system call is RUNNABLE to Java, so this is a good guess, no more: the
        // tests hold whether or not the wait has begun.
        Thread.sleep(50);
        return result;
    }

    private void assertWakes(String key, Runnable action) throws Exception {
        Future<Object> done =
                blocked(
                        () -> {
                            store.waitFor(List.of(key), LONG);
                            return null;
                        });
        action.run();
        done.get();
    }

    static void assertMissing(List<String> keys, Runnable action) {
        StoreTimeoutException e = assertThrows(StoreTimeoutException.class, action::run);
        assertEquals(keys, e.missingKeys());
        keys.forEach(key -> assertTrue(e.getMessage().contains(key), e.getMessage()));
    }

    private static void assertRefused(Runnable action) {
        assertThrows(IllegalArgumentException.class, action::run);
    }
}
