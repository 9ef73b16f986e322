// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.store.TcpStore;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * A store's server in a small JVM under floods of clients, while a good client uses it: that one is
 * answered in time, rightly, and is refused only while others hold all that the server may give.
 */
@Tag("soak")
class StoreSoakTest {

    private static final int HEAP_MIB = 128;
    // Heap, as much again outside of it for what is on its way, and the JVM itself.
    private static final int MOST_RESIDENT_MIB = 2 * HEAP_MIB + 256;
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final int STEPS = 50; // of a flood
    private static final int THREADS = 2;

    private static final String SMALL_HEAP = "-Xmx" + HEAP_MIB + "m";

    @Test
    void serverSurvivesAttacks() throws InterruptedException {
        Soak.run("store", StoreSoakTest::attack);
    }

    private static void attack(Soak soak) throws Exception {
        Path output = Files.createTempFile("store-", ".log");
        Process server =
                new ProcessBuilder(
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                SMALL_HEAP,
                                "-XX:+UseSerialGC",
                                "-XX:+ExitOnOutOfMemoryError",
                                "-cp",
                                System.getProperty("java.class.path"),
                                StoreServerMain.class.getName())
                        .redirectErrorStream(true)
                        .redirectOutput(output.toFile())
                        .start();
        try {
            attack(soak, server, output);
        } catch (RuntimeException | Error e) {
            throw new AssertionError(
                    String.format(
                            "%s; the server %s; it printed:%n%s",
                            e, server.isAlive() ? "lives" : "has ended", Files.readString(output)),
                    e);
        } finally {
            server.destroyForcibly().waitFor();
            Files.delete(output);
        }
    }

    private static void attack(Soak soak, Process server, Path output) throws Exception {
        int port = (int) number(server, output, "port");
        try (TcpStore store = connect(port)) {
            store.set(StoreFlood.LARGE, new byte[4 << 20]);
            while (soak.nextRound()) {
                for (StoreFlood.Kind kind : StoreFlood.Kind.values()) {
                    Random random = new Random(soak.roundSeed() + kind.ordinal());
                    flood(soak, port, store, random, kind);
                }
                long resident = residentMib(server.pid());
                assertTrue(resident < MOST_RESIDENT_MIB, resident + " MiB are resident");
            }
            soak.requireAll(List.of(StoreFlood.Kind.values()));
            soak.requireAll(List.of("answers"));
            soak.add("MiB resident at most", residentMib(server.pid()));
            store.delete(StoreFlood.LARGE);
        }
        server.getOutputStream().close();
        long heap = number(server, output, "heap");
        assertTrue(heap < 24 << 20, heap + " bytes of heap are in use by an empty store");
        assertTrue(server.waitFor(60, TimeUnit.SECONDS));
        assertEquals(0, server.exitValue());
    }

    /** Waits for a line with a number that the server prints. */
    private static long number(Process server, Path output, String name) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (true) {
            boolean ended = !server.isAlive();
            Matcher matcher =
                    Pattern.compile("(?m)^" + name + " (\\d+)\n").matcher(Files.readString(output));
            if (matcher.find()) {
                return Long.parseLong(matcher.group(1));
            }
            assertTrue(!ended && System.nanoTime() - end < 0, "there is no " + name);
            Thread.sleep(20);
        }
    }

    private static TcpStore connect(int port) {
        return TcpStore.builder().setHost("localhost").setPort(port).optTimeout(PATIENCE).build();
    }

    /** The most that a process has had in memory. */
    private static long residentMib(long pid) throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/" + pid + "/status"))) {
            if (line.startsWith("VmHWM:")) {
                return Long.parseLong(line.replaceAll("[^0-9]", "")) >> 10;
            }
        }
        throw new AssertionError("the server is gone");
    }

    private static void flood(
            Soak soak, int port, TcpStore store, Random random, StoreFlood.Kind kind)
            throws Exception {
        Thread[] threads = new Thread[THREADS];
        Throwable[] failures = new Throwable[THREADS];
        for (int i = 0; i < THREADS; i++) {
            int self = i;
            long seed = random.nextLong();
            threads[i] =
                    new Thread(
                            () -> {
                                try (StoreFlood flood = new StoreFlood(port, seed)) {
                                    for (int step = 0; step < STEPS; step++) {
                                        flood.step(kind);
                                    }
                                } catch (Throwable e) {
                                    failures[self] = e;
                                }
                            },
                            "flood");
            threads[i].start();
        }
        while (Arrays.stream(threads).anyMatch(Thread::isAlive)) {
            try {
                use(store, random);
                soak.add("answers", 1);
            } catch (CollectiveException e) {
                assertTrue(kind.takesMemory(), () -> kind + ": " + e);
                soak.add("refusals", 1);
            }
        }
        for (Throwable failure : failures) {
            if (failure != null) {
                throw new AssertionError("the flood itself failed: " + failure, failure);
            }
        }
        soak.add(kind.toString(), 1);
        recover(store, random);
    }

    /** Once the flood is over all is as before; the server may notice that a moment later. */
    private static void recover(TcpStore store, Random random) throws InterruptedException {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!hasRecovered(store, random)) {
            assertTrue(System.nanoTime() - end < 0, "the server does not recover");
            Thread.sleep(50);
        }
    }

    private static boolean hasRecovered(TcpStore store, Random random) {
        try {
            for (int i = 0; i < StoreFlood.KEYS; i++) {
                store.delete(StoreFlood.key(i));
            }
            use(store, random);
            return store.numKeys() == 1;
        } catch (CollectiveException e) {
            return false;
        }
    }

    /** What a good client does; it leaves no key. */
    private static void use(TcpStore store, Random random) {
        byte[] value = new byte[random.nextInt(10_000)];
        random.nextBytes(value);
        long start = System.nanoTime();
        try {
            store.set("own", value);
            store.waitFor(List.of("own"), PATIENCE);
            assertArrayEquals(value, store.get("own", PATIENCE));
            long before = store.add("counter", 0);
            assertEquals(before + 3, store.add("counter", 3));
        } finally {
            store.delete("own");
            store.delete("counter");
            long seconds = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - start);
            assertTrue(seconds < PATIENCE.toSeconds(), "answered after " + seconds + " s");
        }
    }
}
