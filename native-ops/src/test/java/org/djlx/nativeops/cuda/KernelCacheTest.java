// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.djlx.nativeops.host.Flock;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
@Tag("slow")
class KernelCacheTest {

    private static final KernelSource SOURCE = new KernelSource("k.cu", "text", Map.of());
    private static final KernelCache.Key KEY =
            new KernelCache.Key(SOURCE, List.of("-O3"), "sm_90a", "NVRTC 13.0");

    @TempDir Path directory;

    private final AtomicInteger compilations = new AtomicInteger();
    private final byte[] compiled = new byte[1000];

    KernelCacheTest() {
        for (int i = 0; i < compiled.length; i++) {
            compiled[i] = (byte) (i * 7);
        }
    }

    private Supplier<byte[]> compiler() {
        return () -> {
            compilations.incrementAndGet();
            return compiled;
        };
    }

    /** A cache as another process would have it, with nothing in memory. */
    private KernelCache fresh() {
        return new KernelCache(directory.resolve("a").resolve("b"));
    }

    private List<Path> files() throws IOException {
        try (var files = Files.list(directory.resolve("a").resolve("b"))) {
            return files.toList();
        }
    }

    @Test
    void compilesOnceForAllProcesses() throws IOException {
        KernelCache cache = fresh();
        byte[] first = cache.get(KEY, compiler());
        assertArrayEquals(compiled, first);
        assertSame(first, cache.get(KEY, compiler()));
        assertArrayEquals(compiled, fresh().get(KEY, compiler()));
        assertEquals(1, compilations.get());
        assertEquals(1, files().size(), "nothing temporary stays");
    }

    /** Who prepares a kernel need not have it compiled then, and does not wait to learn that. */
    @Test
    void knowsWhatIsCompiled() throws IOException {
        KernelCache cache = fresh();
        assertFalse(cache.has(KEY));
        cache.get(
                KEY,
                () -> {
                    assertFalse(CompletableFuture.supplyAsync(() -> cache.has(KEY)).join());
                    return compiled;
                });
        assertTrue(fresh().has(KEY), "as a file");
        for (Path file : files()) {
            Files.delete(file);
        }
        assertTrue(cache.has(KEY), "in memory");
        assertFalse(fresh().has(KEY));
    }

    @Test
    void everyPartOfTheKeyCounts() {
        List<String> options = List.of("-O3");
        Set<String> digests = new HashSet<>();
        List<KernelCache.Key> keys =
                List.of(
                        KEY,
                        new KernelCache.Key(
                                new KernelSource("l.cu", "text", Map.of()),
                                options,
                                "sm_90a",
                                "NVRTC 13.0"),
                        new KernelCache.Key(
                                new KernelSource("k.cu", "other", Map.of()),
                                options,
                                "sm_90a",
                                "NVRTC 13.0"),
                        new KernelCache.Key(
                                new KernelSource("k.cu", "text", Map.of("h.cuh", "1")),
                                options,
                                "sm_90a",
                                "NVRTC 13.0"),
                        new KernelCache.Key(
                                new KernelSource("k.cu", "text", Map.of("h.cuh", "2")),
                                options,
                                "sm_90a",
                                "NVRTC 13.0"),
                        new KernelCache.Key(SOURCE, List.of("-O", "3"), "sm_90a", "NVRTC 13.0"),
                        new KernelCache.Key(SOURCE, options, "sm_80", "NVRTC 13.0"),
                        new KernelCache.Key(SOURCE, options, "sm_90a", "NVRTC 12.8"));
        keys.forEach(key -> digests.add(key.digest()));
        assertEquals(keys.size(), digests.size());
        assertEquals(
                KEY.digest(),
                new KernelCache.Key(
                                new KernelSource("k.cu", "text", Map.of()),
                                new ArrayList<>(options),
                                "sm_90a",
                                "NVRTC 13.0")
                        .digest());
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 47, 48, 500, 1047})
    void truncatedFilesAreReplaced(int length) throws IOException {
        fresh().get(KEY, compiler());
        Path file = files().get(0);
        Files.write(file, Arrays.copyOf(Files.readAllBytes(file), length));
        assertArrayEquals(compiled, fresh().get(KEY, compiler()));
        assertEquals(2, compilations.get());
        assertArrayEquals(compiled, fresh().get(KEY, compiler()));
        assertEquals(2, compilations.get(), "the file is good again");
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 12, 20, 48, 700, 1047})
    void damagedFilesAreReplaced(int position) throws IOException {
        fresh().get(KEY, compiler());
        Path file = files().get(0);
        byte[] bytes = Files.readAllBytes(file);
        bytes[position] ^= 1;
        Files.write(file, bytes);
        assertArrayEquals(compiled, fresh().get(KEY, compiler()));
        assertEquals(2, compilations.get());
    }

    @Test
    void longerFilesAreReplaced() throws IOException {
        fresh().get(KEY, compiler());
        Path file = files().get(0);
        byte[] bytes = Files.readAllBytes(file);
        Files.write(file, Arrays.copyOf(bytes, bytes.length + 1));
        fresh().get(KEY, compiler());
        assertEquals(2, compilations.get());
    }

    @Test
    void worksWithoutAFolder() throws IOException {
        Path file = Files.createFile(directory.resolve("file"));
        for (Path unwritable : List.of(file, file.resolve("below"), Path.of("/proc/djlx"))) {
            KernelCache cache = new KernelCache(unwritable);
            compilations.set(0);
            assertArrayEquals(compiled, cache.get(KEY, compiler()));
            assertArrayEquals(compiled, cache.get(KEY, compiler()));
            assertEquals(1, compilations.get(), "kept in memory");
            assertArrayEquals(compiled, new KernelCache(unwritable).get(KEY, compiler()));
            assertEquals(2, compilations.get());
        }
    }

    @Test
    void failuresAreNotKept() throws IOException {
        KernelCache cache = fresh();
        CudaException failure = new CudaException("compile", "NAME", 6, "log");
        assertSame(
                failure,
                assertThrows(
                        CudaException.class,
                        () ->
                                cache.get(
                                        KEY,
                                        () -> {
                                            throw failure;
                                        })));
        assertEquals(List.of(), files());
        assertArrayEquals(compiled, cache.get(KEY, compiler()));
    }

    /** Somebody who waits sees why, while it goes on: this compilation ends when it was told of. */
    @Test
    void tellsWhatIsBeingCompiledIfItTakesLong() {
        List<String> options = List.of("--std=c++17", "-DA=1", "-DB=2");
        KernelCache.Key key = new KernelCache.Key(SOURCE, options, "sm_90a", "NVRTC 13.0");
        CompletableFuture<String> message = new CompletableFuture<>();
        KernelCache cache = new KernelCache(directory, Duration.ZERO, message::complete);
        cache.get(
                key,
                () -> {
                    message.join();
                    return compiled;
                });
        assertEquals(
                "compiling k.cu for sm_90a with -DA=1 -DB=2 by NVRTC 13.0; the result is cached in "
                        + directory,
                message.join());
    }

    @Test
    void tellsNothingOfWhatIsQuickOrFails() {
        AtomicInteger messages = new AtomicInteger();
        Duration patience = Duration.ofDays(1);
        KernelCache cache =
                new KernelCache(directory, patience, text -> messages.incrementAndGet());
        assertThrows(
                IllegalStateException.class,
                () ->
                        cache.get(
                                KEY,
                                () -> {
                                    throw new IllegalStateException();
                                }));
        cache.get(KEY, compiler());
        cache.get(KEY, compiler());
        assertEquals(0, messages.get());
    }

    @Test
    void threadsOfOneProcessCompileOnce() throws Exception {
        KernelCache cache = fresh();
        runOnThreads(8, () -> cache.get(KEY, compiler()));
        assertEquals(1, compilations.get());
    }

    /** Of so many that some have the same place in any map. */
    @Test
    void threadsCompileDifferentKernelsAtTheSameTime() throws Exception {
        int threads = 64;
        KernelCache cache = fresh();
        AtomicInteger next = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(threads);
        runOnThreads(
                threads,
                () -> {
                    List<String> options = List.of("-D" + next.getAndIncrement());
                    return cache.get(
                            new KernelCache.Key(SOURCE, options, "sm_90a", "NVRTC 13.0"),
                            () -> {
                                all.countDown();
                                try {
                                    assertTrue(all.await(20, TimeUnit.SECONDS));
                                } catch (InterruptedException e) {
                                    throw new IllegalStateException(e);
                                }
                                return compiled;
                            });
                });
        assertEquals(threads, files().size());
    }

    /** Caches that have nothing in common but the folder. */
    @Test
    void cachesThatCompileAtOnceCompileOnce() throws Exception {
        for (int round = 0; round < 20; round++) {
            compilations.set(0);
            runOnThreads(4, () -> fresh().get(KEY, compiler()));
            assertEquals(1, compilations.get());
            assertEquals(1, files().size());
            Files.delete(files().get(0));
        }
    }

    @Test
    void processesThatCompileAtOnceCompileOnce() throws Exception {
        List<Peer> peers = List.of(start(1500), start(1500), start(1500));
        try {
            for (Peer peer : peers) {
                assertEquals("ready", peer.output().readLine());
            }
            for (Peer peer : peers) {
                peer.begin();
            }
            int compilers = 0;
            Set<String> kernels = new HashSet<>();
            for (Peer peer : peers) {
                String line = peer.output().readLine();
                if (line.equals("compiles")) {
                    compilers++;
                    line = peer.output().readLine();
                }
                kernels.add(line);
            }
            assertEquals(1, compilers);
            assertEquals(1, kernels.size(), kernels::toString);
        } finally {
            peers.forEach(Peer::kill);
        }
        assertEquals(1, files().size(), "nothing temporary stays");
    }

    /** One that is killed leaves its lock to the next; one that is stopped, after a while. */
    @Test
    void aProcessThatDoesNotEndIsNotWaitedForForEver() throws Exception {
        Peer peer = start(1_000_000);
        try {
            peer.begin();
            assertEquals("ready", peer.output().readLine());
            assertEquals("compiles", peer.output().readLine());
            assertEquals(1, files().size());
            Path lockFile = files().get(0);
            assertNull(Flock.acquire(lockFile, Duration.ofMillis(100)));
            assertTrue(Files.exists(lockFile), "it is another's");
            Future<byte[]> waits =
                    CompletableFuture.supplyAsync(
                            () -> fresh().get(KernelCacheProcess.KEY, compiler()));
            assertThrows(TimeoutException.class, () -> waits.get(300, TimeUnit.MILLISECONDS));
            peer.kill();
            assertArrayEquals(compiled, waits.get(30, TimeUnit.SECONDS));
            assertEquals(1, files().size(), "nothing temporary stays");
        } finally {
            peer.kill();
        }
    }

    /** A {@link KernelCacheProcess}. */
    private record Peer(Process process, BufferedReader output) {

        void begin() throws IOException {
            process.getOutputStream().write('\n');
            process.getOutputStream().flush();
        }

        void kill() {
            process.destroyForcibly();
        }
    }

    private Peer start(long millis) throws IOException {
        Process process =
                new ProcessBuilder(
                                System.getProperty("java.home") + "/bin/java",
                                "-cp",
                                System.getProperty("java.class.path"),
                                KernelCacheProcess.class.getName(),
                                directory.resolve("a").resolve("b").toString(),
                                "" + millis)
                        .redirectError(ProcessBuilder.Redirect.INHERIT)
                        .start();
        return new Peer(process, process.inputReader(StandardCharsets.UTF_8));
    }

    private void runOnThreads(int threads, Supplier<byte[]> work) throws Exception {
        ExecutorService executor = Executors.newFixedThreadPool(threads);
        try {
            CountDownLatch start = new CountDownLatch(threads);
            List<Future<byte[]>> results = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                results.add(
                        executor.submit(
                                () -> {
                                    start.countDown();
                                    start.await();
                                    return work.get();
                                }));
            }
            for (Future<byte[]> result : results) {
                assertArrayEquals(compiled, result.get(30, TimeUnit.SECONDS));
            }
        } finally {
            executor.shutdownNow();
        }
    }

    @Test
    void folderOfTheUser() {
        assertEquals(Path.of("/p"), KernelCache.userDirectory("/p", "/v", "/home/u"));
        assertEquals(Path.of("/v"), KernelCache.userDirectory(null, "/v", "/home/u"));
        assertEquals(Path.of("/v"), KernelCache.userDirectory("", "/v", "/home/u"));
        assertEquals(
                Path.of("/home/u/.cache/djlx/kernels"),
                KernelCache.userDirectory(null, "", "/home/u"));
        assertTrue(KernelCache.user() == KernelCache.user());
    }
}
