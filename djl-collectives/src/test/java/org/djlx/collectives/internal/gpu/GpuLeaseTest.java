// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.EngineException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Leases of several processes. */
@Timeout(120)
class GpuLeaseTest {

    private static final String HELD = "held";

    @TempDir Path folder;

    private final List<Process> processes = new ArrayList<>();

    @AfterEach
    void end() throws InterruptedException {
        for (Process process : processes) {
            kill(process);
        }
    }

    private static void kill(Process process) throws InterruptedException {
        process.destroyForcibly(); // SIGKILL
        assertTrue(process.waitFor(30, TimeUnit.SECONDS));
    }

    private Process start(String gpu, String... jobs) throws IOException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.addAll(List.of(GpuLeaseMain.class.getName(), folder.toString(), gpu));
        command.addAll(List.of(jobs));
        Process process =
                new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        processes.add(process);
        return process;
    }

    private static String answer(Process process) throws IOException {
        return new BufferedReader(
                        new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))
                .readLine();
    }

    private GpuLease acquire(String job, String... known) {
        return GpuLease.acquire(folder, "gpu", job, Set.of(known), Duration.ofSeconds(10));
    }

    @Test
    void anotherJobIsRefusedUntilTheHolderIsKilled() throws Exception {
        Process holder = start("gpu", "job 1");
        assertEquals(HELD, answer(holder));
        EngineException refused =
                assertThrows(EngineException.class, () -> acquire("job 2", "job 2"));
        assertTrue(refused.getMessage().contains("process " + holder.pid()), refused::getMessage);
        assertTrue(refused.getMessage().contains("backend 'nccl'"), refused::getMessage);
        assertEquals(HELD, answer(start("another gpu", "job 2")));
        kill(holder);
        acquire("job 2", "job 2").close();
    }

    /** The first process may end before the second one. */
    @Test
    void processesOfAJobShareALease() throws Exception {
        Process first = start("gpu", "job 1");
        assertEquals(HELD, answer(first));
        Process second = start("gpu", "job of its own", "job 1");
        assertEquals(HELD, answer(second));
        kill(first);
        assertThrows(EngineException.class, () -> acquire("job 2", "job 2"));
        second.getOutputStream().close();
        assertTrue(second.waitFor(30, TimeUnit.SECONDS));
        acquire("job 2", "job 2").close();
    }

    @Test
    void aProcessKeepsTheGpuUntilItsLastLeaseIsClosed() throws Exception {
        GpuLease first = acquire("job 1", "job 1");
        GpuLease second = acquire("job 1", "job 1");
        first.close();
        first.close();
        assertNotEquals(HELD, answer(start("gpu", "job 2")));
        second.close();
        assertEquals(HELD, answer(start("gpu", "job 2")));
    }

    @Test
    void aFileThatStaysLockedIsAnError() throws Exception {
        Process busy = start("gpu");
        assertEquals(HELD, answer(busy));
        String message =
                assertThrows(
                                EngineException.class,
                                () ->
                                        GpuLease.acquire(
                                                folder, "gpu", "job", Set.of(), Duration.ZERO))
                        .getMessage();
        assertTrue(message.contains("a process keeps " + folder), message);
        kill(busy);
        acquire("job", "job").close();
    }

    @Test
    void aLockedFileBlocksNoOtherGpu() throws Exception {
        Process busy = start("gpu");
        assertEquals(HELD, answer(busy));
        FutureTask<GpuLease> waiting = new FutureTask<>(() -> lease("gpu"));
        Thread thread = new Thread(waiting);
        thread.start();
        while (thread.getState() != Thread.State.TIMED_WAITING) {
            Thread.onSpinWait();
        }
        lease("another gpu").close();
        assertFalse(waiting.isDone());
        kill(busy);
        waiting.get().close();
    }

    private GpuLease lease(String gpu) {
        return GpuLease.acquire(folder, gpu, "job", Set.of("job"), Duration.ofMinutes(1));
    }

    /** Leases leave one small file for each GPU. */
    @Test
    void filesDoNotGrow() throws IOException {
        for (int i = 0; i < 100; i++) {
            acquire("job " + i, "job " + i).close();
        }
        try (var files = Files.list(folder)) {
            List<Path> all = files.toList();
            assertEquals(1, all.size());
            assertTrue(Files.size(all.get(0)) < 100);
        }
    }

    @Test
    void withoutAccessThereIsNoCheck() throws IOException {
        Files.createSymbolicLink(folder.resolve("djlx-gpu-gpu.lock"), folder.resolve("target"));
        acquire("job 1", "job 1").close();
        assertTrue(Files.notExists(folder.resolve("target")));
    }

    @Test
    void theLauncherNamesTheJob() {
        Map<String, String> launched = Map.of("MASTER_ADDR", "host", "MASTER_PORT", "29500");
        assertEquals("host:29500", GpuLease.job(launched));
        assertNotEquals(GpuLease.job(Map.of()), GpuLease.job(Map.of()));
    }
}
