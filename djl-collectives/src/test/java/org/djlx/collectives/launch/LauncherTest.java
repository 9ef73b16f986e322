// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(120)
@Tag("slow")
class LauncherTest {

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    private LaunchOptions probe(int processes, String... args) {
        return new LaunchOptions(processes, args).output(stream(out), stream(err));
    }

    private static PrintStream stream(ByteArrayOutputStream bytes) {
        return new PrintStream(bytes, true, StandardCharsets.UTF_8);
    }

    private Set<String> outLines() {
        return Arrays.stream(out.toString(StandardCharsets.UTF_8).split("\n"))
                .collect(Collectors.toSet());
    }

    private String errText() {
        return err.toString(StandardCharsets.UTF_8);
    }

    @Test
    void givesEachRankTheEnvironmentOfTorchrun() throws Exception {
        Launcher launcher =
                probe(2, "environment")
                        .master("localhost", 29501)
                        .environment(Map.of("COLOUR", "a=b", "OMP_NUM_THREADS", "3"))
                        .build();
        assertEquals(0, launcher.launch());
        for (int rank = 0; rank < 2; rank++) {
            for (String variable :
                    List.of(
                            "RANK=" + rank,
                            "LOCAL_RANK=" + rank,
                            "ROLE_RANK=" + rank,
                            "GROUP_RANK=0",
                            "WORLD_SIZE=2",
                            "LOCAL_WORLD_SIZE=2",
                            "ROLE_WORLD_SIZE=2",
                            "MASTER_ADDR=localhost",
                            "MASTER_PORT=29501",
                            "OMP_NUM_THREADS=3",
                            "COLOUR=a=b")) {
                String line = "[" + rank + "] " + variable;
                assertTrue(outLines().contains(line), () -> line + " not in " + outLines());
            }
        }
    }

    @Test
    void findsOnePortForAllRanks() throws Exception {
        assertEquals(0, probe(2, "environment").build().launch());
        Set<String> ports =
                outLines().stream()
                        .filter(line -> line.contains("] MASTER_PORT="))
                        .map(line -> line.substring(line.indexOf('=') + 1))
                        .collect(Collectors.toSet());
        assertEquals(1, ports.size(), ports::toString);
        assertTrue(Integer.parseInt(ports.iterator().next()) > 0, ports::toString);
    }

    @Test
    void passesArgumentsAndJvmOptionsOn() throws Exception {
        assertEquals(0, probe(1, "arguments", "--a b", "", "@c").build().launch());
        assertEquals(Set.of("[0] arguments|--a b||@c", "[0] heap 64"), outLines());
    }

    @Test
    void prefixesEachLineAndKeepsTheStreamsApart() throws Exception {
        assertEquals(0, probe(2, "write").build().launch());
        assertEquals(
                Set.of(
                        "[0] out",
                        "[0] ",
                        "[0] last, no line feed \u00fc",
                        "[1] out",
                        "[1] ",
                        "[1] last, no line feed \u00fc"),
                outLines());
        assertEquals(Set.of("[0] err", "[1] err"), errText().lines().collect(Collectors.toSet()));
    }

    @Test
    void ranksFindStdinEmpty() throws Exception {
        assertEquals(0, probe(2, "read").build().launch());
        assertEquals(Set.of("[0] read 0", "[1] read 0"), outLines());
    }

    @Test
    void theMainClassNeedNotBePublic() throws Exception {
        String name = RankProbe.PackagePrivate.class.getName();
        assertEquals(0, probe(1).mainClass(name).build().launch(), this::errText);
        assertEquals(Set.of("[0] package-private"), outLines());
    }

    @Test
    void returnsTheCodeOfTheRankThatFails() throws Exception {
        assertEquals(1, probe(2, "exit-code-is-rank").build().launch());
        assertTrue(errText().contains("rank 1 exited with code 1"), this::errText);
    }

    @Test
    void anExceptionEndsTheRankAlthoughOtherThreadsRun() throws Exception {
        assertEquals(1, probe(1, "throw").build().launch());
        assertTrue(errText().contains("[0] java.io.IOException: rank 0 failed"), this::errText);
    }

    @ParameterizedTest
    @ValueSource(strings = {"throw-unprintable", "fill-heap", "fail-to-exit"})
    void failedRankEndsAlthoughItsExceptionCannotBePrinted(String action) throws Exception {
        assertEquals(1, probe(1, action).build().launch(), this::errText);
        assertTrue(errText().contains("rank 0 exited with code 1"), this::errText);
    }

    @Test
    void oneFailureStopsTheOthersWhichMayLeaveInOrder() throws Exception {
        assertEquals(42, probe(3, "one-exits", "2", "orderly").build().launch());
        assertTrue(errText().contains("rank 2 exited with code 42"), this::errText);
        TestProcesses.assertGone(TestProcesses.pids(outLines()));
        outLines().stream()
                .filter(line -> line.contains("pid"))
                .map(line -> line.substring(0, 4) + "left in order")
                .forEach(
                        line -> assertTrue(outLines().contains(line), () -> outLines().toString()));
    }

    @Test
    void killsARankThatDoesNotStopInTime() throws Exception {
        Launcher launcher =
                probe(2, "one-exits", "1", "stubborn").gracePeriod(Duration.ofMillis(500)).build();
        assertEquals(42, launcher.launch());
        TestProcesses.assertGone(TestProcesses.pids(outLines()));
    }

    @Test
    void startsAllRanksAgainWhenOneFails() throws Exception {
        Launcher launcher = probe(3, "one-fails-until", "2", "orderly").maxRestarts(5).build();
        assertEquals(0, launcher.launch(), this::errText);
        for (int rank = 0; rank < 3; rank++) {
            String line = "[" + rank + "] restart 2 of 5";
            assertTrue(outLines().contains(line), () -> outLines().toString());
        }
        assertTrue(errText().contains("rank 1 exited with code 40"), this::errText);
        assertTrue(errText().contains("starting all ranks again, restart 1 of 5"), this::errText);
        assertTrue(errText().contains("rank 1 exited with code 41"), this::errText);
        assertTrue(errText().contains("starting all ranks again, restart 2 of 5"), this::errText);
        TestProcesses.assertGone(TestProcesses.pids(outLines()));
    }

    /** The files have the bytes as they are; the output is printed, too. */
    @Test
    void eachRankAndAttemptHasItsLogFiles(@TempDir Path folder) throws Exception {
        Launcher launcher = probe(2, "one-fails-until", "1").maxRestarts(1).logs(folder).build();
        assertEquals(0, launcher.launch(), this::errText);
        for (int rank = 0; rank < 2; rank++) {
            Path file = folder.resolve("attempt_1").resolve("" + rank).resolve("stdout.log");
            assertEquals("restart 1 of 1\n", Files.readString(file));
            assertTrue(
                    outLines().contains("[" + rank + "] restart 1 of 1"),
                    () -> outLines() + errText());
        }
        assertTrue(Files.exists(folder.resolve("attempt_0/0/stdout.log")));
        assertEquals("", Files.readString(folder.resolve("attempt_0/1/stderr.log")));
    }

    /** A full disk ends a log file, neither the output nor the job; files of earlier jobs stay. */
    @Test
    void logFilesAreAppendedToAndMayFail(@TempDir Path folder) throws Exception {
        Path full = Files.createDirectories(folder.resolve("attempt_0/0"));
        Files.createSymbolicLink(full.resolve("stdout.log"), Path.of("/dev/full"));
        Path earlier = Files.createDirectories(folder.resolve("attempt_0/1"));
        Files.writeString(earlier.resolve("stdout.log"), "earlier\n");
        assertEquals(0, probe(2, "arguments", "a").logs(folder).build().launch(), this::errText);
        assertTrue(outLines().containsAll(Set.of("[0] heap 64", "[1] heap 64")), this::errText);
        assertTrue(errText().isEmpty(), this::errText);
        assertEquals(
                "earlier\narguments|a\nheap 64\n", Files.readString(earlier.resolve("stdout.log")));
        assertTrue(
                outLines().stream().anyMatch(line -> line.startsWith("[0] cannot write " + full)),
                () -> outLines().toString());
        Path file = Files.createFile(folder.resolve("file"));
        String message =
                assertThrows(IOException.class, probe(1, "sleep").logs(file).build()::launch)
                        .getMessage();
        assertTrue(message.startsWith("--log-dir: cannot create the folder"), message);
    }

    @Test
    void returnsTheLastCodeWhenNoRestartIsLeft() throws Exception {
        Launcher launcher = probe(2, "one-fails-until", "9").maxRestarts(2).build();
        assertEquals(42, launcher.launch(), this::errText);
        assertFalse(errText().contains("restart 3"), this::errText);
        TestProcesses.assertGone(TestProcesses.pids(outLines()));
    }

    /** Each attempt has a new store on the same port, without the keys of the first. */
    @Test
    void aKilledRankLeavesNothingToTheNextAttempt() throws Exception {
        int port;
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        Launcher launcher =
                probe(2, "one-is-killed-once").master(null, port).maxRestarts(1).build();
        assertEquals(0, launcher.launch(), this::errText);
        assertTrue(errText().contains("rank 1 exited with code 137 (signal 9)"), this::errText);
        assertTrue(outLines().containsAll(Set.of("[0] done 1", "[1] done 1")), this::errText);
        TestProcesses.assertGone(TestProcesses.pids(outLines()));
    }

    @Test
    void outputThatNobodyReadsStopsTheRanks() throws Exception {
        PrintStream gone = stream(out);
        gone.close();
        Launcher launcher = probe(2, "sleep").output(gone, stream(err)).maxRestarts(3).build();
        assertEquals(141, launcher.launch());
        assertEquals("[launch] cannot write to stdout; stopping all ranks\n", errText());
    }

    @Test
    void noChildOfARankIsLeft() throws Exception {
        assertEquals(0, probe(2, "leave-child").build().launch());
        Set<Long> children = TestProcesses.pids(outLines());
        assertEquals(2, children.size(), () -> outLines().toString());
        for (long child : children) {
            assertFalse(TestProcesses.isRunning(child), () -> child + " is still there");
        }
    }

    @Test
    void passesTheProjectFolderToRanks() throws Exception {
        String before = System.setProperty("djlx.home", "/some where");
        try {
            assertEquals(0, probe(1, "property", "djlx.home").build().launch());
            assertEquals(Set.of("[0] djlx.home=/some where"), outLines());
        } finally {
            if (before == null) {
                System.clearProperty("djlx.home");
            } else {
                System.setProperty("djlx.home", before);
            }
        }
    }

    /** A message is written at once: pieces would mix with the ranks' output. */
    @Test
    void aMessageOfTheLauncherIsOneWrite() throws Exception {
        List<String> writes = Collections.synchronizedList(new ArrayList<>());
        OutputStream pieces =
                new OutputStream() {
                    @Override
                    public void write(int b) {
                        writes.add(Character.toString(b));
                    }

                    @Override
                    public void write(byte[] bytes, int offset, int length) {
                        writes.add(new String(bytes, offset, length, StandardCharsets.UTF_8));
                    }
                };
        PrintStream whole = new PrintStream(pieces, true, StandardCharsets.UTF_8);
        Launcher launcher = probe(2, "exit-code-is-rank").output(stream(out), whole).build();
        assertEquals(1, launcher.launch());
        assertEquals(1, writes.size(), writes::toString);
        assertTrue(
                writes.get(0).matches("\\[launch] rank 1 exited with code 1.*\n"),
                writes::toString);
    }

    @Test
    void anInterruptStopsTheRanks() throws Exception {
        Launcher launcher = probe(2, "sleep").build();
        Thread launching =
                new Thread(() -> assertThrows(InterruptedException.class, launcher::launch));
        launching.start();
        while (TestProcesses.pids(outLines()).size() < 2) {
            Thread.sleep(20);
        }
        launching.interrupt();
        launching.join();
        TestProcesses.assertGone(TestProcesses.pids(outLines()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"org.djlx.Missing", "org.djlx.collectives.launch.LauncherTest", "a/b"})
    void rejectsAClassWithoutMain(String name) {
        LaunchOptions builder = probe(1).mainClass(name);
        String message = assertThrows(IllegalArgumentException.class, builder::build).getMessage();
        assertTrue(message.contains(name), message);
    }

    @ParameterizedTest
    @ValueSource(strings = {"RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID"})
    void rejectsTheVariablesThatItSetsItself(String name) {
        LaunchOptions builder = probe(1).environment(Map.of(name, "7"));
        String message = assertThrows(IllegalArgumentException.class, builder::build).getMessage();
        assertTrue(message.contains(name), message);
    }

    @Test
    void rejectsNumbersOutOfRange() {
        assertThrows(IllegalArgumentException.class, probe(0)::build);
        assertThrows(IllegalArgumentException.class, probe(1).master(null, -1)::build);
        assertThrows(IllegalArgumentException.class, probe(1).master(null, 65536)::build);
        assertThrows(IllegalArgumentException.class, probe(1).maxRestarts(-1)::build);
    }
}
