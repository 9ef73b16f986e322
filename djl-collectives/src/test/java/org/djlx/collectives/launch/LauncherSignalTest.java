// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The launcher is a process that gets a signal; its ranks must end. */
@Timeout(120)
@Tag("slow")
class LauncherSignalTest {

    private Process launcher;
    private BufferedReader output;
    private final List<String> lines = new ArrayList<>();

    /** Runs {@code launch} in a JVM of its own and waits until all processes are up. */
    private Set<Long> launch(int processes, String... args) throws Exception {
        start(args);
        while (TestProcesses.pids(lines).size() < processes) {
            readLine();
        }
        return TestProcesses.pids(lines);
    }

    private void readLine() throws IOException {
        String line = output.readLine();
        assertTrue(line != null, () -> "Ended early: " + lines);
        lines.add(line);
    }

    private void start(String... args) throws IOException {
        // A JVM keeps ignoring signals that were ignored when it started, as in the background of a
        // script.
        List<String> command = new ArrayList<>(List.of("env", "--default-signal=INT,TERM"));
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx64m", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.addAll(List.of(Launch.class.getName(), "--nproc", "2"));
        command.addAll(List.of("--max-restarts", "1000"));
        command.addAll(List.of("--jvm-arg", "-Xmx64m", "--jvm-arg", "-XX:TieredStopAtLevel=1"));
        command.add(RankProbe.class.getName());
        command.addAll(List.of(args));
        launcher = new ProcessBuilder(command).redirectErrorStream(true).start();
        output = launcher.inputReader();
    }

    @AfterEach
    void killWhatAFailedTestLeft() {
        launcher.destroyForcibly();
        TestProcesses.pids(lines).stream()
                .flatMap(pid -> ProcessHandle.of(pid).stream())
                .forEach(ProcessHandle::destroyForcibly);
    }

    @ParameterizedTest
    @CsvSource({"TERM, 143", "INT, 130"})
    void aSignalStopsTheRanksInOrder(String signal, int exitCode) throws Exception {
        Set<Long> ranks = launch(2, "sleep", "orderly");
        kill(signal);
        output.lines().forEach(lines::add);
        assertEquals(exitCode, launcher.waitFor());
        TestProcesses.assertGone(ranks);
        assertTrue(
                lines.containsAll(List.of("[0] left in order", "[1] left in order")),
                lines::toString);
    }

    @Test
    void noRankOutlivesAKilledLauncher() throws Exception {
        Set<Long> ranks = launch(2, "sleep", "stubborn");
        kill("KILL");
        assertEquals(137, launcher.waitFor());
        TestProcesses.assertGone(ranks);
    }

    @ParameterizedTest
    @ValueSource(strings = {"KILL", "TERM"})
    void noChildOfARankOutlivesTheLauncher(String signal) throws Exception {
        Set<Long> family = launch(4, "sleep-beside-child");
        kill(signal);
        launcher.waitFor();
        TestProcesses.assertGone(family);
    }

    /** As when the kernel runs out of memory, or a rank halts because it has lost the launcher. */
    @Test
    void noChildOfARankOutlivesTheLauncherAndTheRank() throws Exception {
        Set<Long> family = launch(4, "sleep-beside-child");
        StringBuilder killed = new StringBuilder("kill -KILL " + launcher.pid());
        ProcessHandle.of(launcher.pid())
                .orElseThrow()
                .children()
                .forEach(rank -> killed.append(" ").append(rank.pid()));
        assertEquals(0, new ProcessBuilder("sh", "-c", killed.toString()).start().waitFor());
        launcher.waitFor();
        TestProcesses.assertGone(family);
    }

    /**
     * Signals arrive while ranks are stopped of which one ignores SIGTERM, while ranks restart, and
     * after a rank of the second attempt has started.
     */
    @ParameterizedTest
    @CsvSource({
        "KILL, stubborn, rank 1 exited",
        "TERM, orderly, rank 1 exited",
        "KILL, orderly, restart 1 of",
        "TERM, orderly, restart 1 of",
        "KILL, orderly, restart 2 of",
        "TERM, orderly, restart 2 of"
    })
    void noRankOutlivesALauncherThatRestarts(String signal, String manner, String moment)
            throws Exception {
        String mark =
                UUID.randomUUID().toString(); // Finds processes that have not printed their ids.
        start("one-fails-until", "1000", mark, manner);
        while (lines.stream().noneMatch(line -> line.contains(moment))) {
            readLine();
        }
        kill(signal);
        output.lines().forEach(lines::add);
        assertEquals(signal.equals("KILL") ? 137 : 143, launcher.waitFor());
        TestProcesses.assertNoneHas(mark);
    }

    @Test
    void killedGuardIsAFailureOfItsRank() throws Exception {
        launch(2, "sleep", "orderly");
        // A guard is a child of its rank, whose shell has become the JVM.
        ProcessHandle rank =
                ProcessHandle.of(launcher.pid()).orElseThrow().children().findFirst().orElseThrow();
        ProcessHandle guard = rank.children().findFirst().orElseThrow();
        assertTrue(guard.destroyForcibly());
        while (lines.stream().noneMatch(line -> line.contains("restart 1 of"))) {
            readLine();
        }
        assertTrue(lines.stream().anyMatch(line -> line.contains("the guard of rank")));
        kill("TERM");
        output.lines().forEach(lines::add);
        TestProcesses.assertGone(TestProcesses.pids(lines));
    }

    private void kill(String signal) throws Exception {
        // The shell's builtin: a minimal system has no kill program.
        String command = "kill -" + signal + " " + launcher.pid();
        assertEquals(0, new ProcessBuilder("sh", "-c", command).start().waitFor());
    }
}
