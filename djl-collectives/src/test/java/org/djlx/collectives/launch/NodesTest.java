// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Several launchers of one job, all on this host. */
@Timeout(120)
@Tag("slow")
class NodesTest {

    private final ExecutorService launchers = Executors.newCachedThreadPool();
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();
    private int port;

    @BeforeEach
    void choosePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
    }

    @AfterEach
    void stopWhatAFailedTestLeft() {
        launchers.shutdownNow();
    }

    private LaunchOptions node(int node, int processes, String... args) {
        return new LaunchOptions(processes, args)
                .nodes(2, 2)
                .nodeRank(node)
                .master("127.0.0.1", port)
                .output(stream(out), stream(err));
    }

    private static PrintStream stream(ByteArrayOutputStream bytes) {
        return new PrintStream(bytes, true, StandardCharsets.UTF_8);
    }

    private Future<Integer> launch(int node, int processes, String... args) {
        return launchers.submit(node(node, processes, args).build()::launch);
    }

    private Set<String> outLines() {
        return Arrays.stream(out.toString(StandardCharsets.UTF_8).split("\n"))
                .collect(Collectors.toSet());
    }

    private String errText() {
        return err.toString(StandardCharsets.UTF_8);
    }

    private Set<Long> awaitRanks(int ranks) throws InterruptedException {
        while (TestProcesses.pids(outLines()).size() < ranks) {
            Thread.sleep(20);
        }
        return TestProcesses.pids(outLines());
    }

    @Test
    void ranksOfAllNodesAreOneJob() throws Exception {
        Future<Integer> second = launch(1, 2, "environment");
        Future<Integer> first = launch(0, 2, "environment");
        assertEquals(0, first.get(), this::errText);
        assertEquals(0, second.get(), this::errText);
        for (int rank = 0; rank < 4; rank++) {
            for (String variable :
                    List.of(
                            "RANK=" + rank,
                            "ROLE_RANK=" + rank,
                            "LOCAL_RANK=" + rank % 2,
                            "GROUP_RANK=" + rank / 2,
                            "GROUP_WORLD_SIZE=2",
                            "WORLD_SIZE=4",
                            "ROLE_WORLD_SIZE=4",
                            "LOCAL_WORLD_SIZE=2",
                            "MASTER_ADDR=127.0.0.1",
                            "MASTER_PORT=" + port,
                            "TORCHELASTIC_RESTART_COUNT=0",
                            "TORCHELASTIC_MAX_RESTARTS=0")) {
                String line = "[" + rank + "] " + variable;
                assertTrue(outLines().contains(line), () -> line + " not in " + outLines());
            }
        }
    }

    /** Ranks meet in the store and, because the nodes are one host, in shared memory. */
    @Test
    void ranksOfAllNodesMeet() throws Exception {
        Future<Integer> first = launch(0, 2, "meet");
        Future<Integer> second = launch(1, 2, "meet");
        assertEquals(0, first.get(), this::errText);
        assertEquals(0, second.get(), this::errText);
        for (int rank = 0; rank < 4; rank++) {
            String line = "[" + rank + "] met [0, 1, 2, 3]";
            assertTrue(outLines().contains(line), () -> line + " not in " + outLines());
        }
    }

    @ParameterizedTest
    @CsvSource({"0", "3"})
    void oneFailureStopsAllNodes(String rank) throws Exception {
        Future<Integer> first = launch(0, 2, "one-exits", rank, "orderly");
        Future<Integer> second = launch(1, 2, "one-exits", rank, "orderly");
        assertEquals(42, first.get(), this::errText);
        assertEquals(42, second.get(), this::errText);
        String failure = "rank " + rank + " exited with code 42";
        assertTrue(errText().contains("[launch] " + failure), this::errText);
        assertTrue(
                errText().contains("another node has failed or come: " + failure), this::errText);
        TestProcesses.assertGone(TestProcesses.pids(outLines()));
    }

    /** A failure of another node counts, whether or not this node's ranks have ended. */
    @Test
    void failureOfOneNodeFailsAllNodes() throws Exception {
        Future<Integer> first = launch(0, 1, "exit-code-is-rank");
        Future<Integer> second = launch(1, 1, "exit-code-is-rank");
        assertEquals(1, first.get(), this::errText);
        assertEquals(1, second.get(), this::errText);
        assertTrue(errText().contains("another node has failed"), this::errText);
    }

    @Test
    void foreignLaunchersDoNotDisturbTheJob() throws Exception {
        Future<Integer> first = launch(0, 1, "sleep");
        Future<Integer> second = launch(1, 1, "sleep");
        Set<Long> ranks = awaitRanks(2);
        assertRefused(node(1, 1, "sleep"), "--node-rank 1 is taken by another launcher");
        assertRefused(
                node(1, 3, "sleep"),
                "it has 2 nodes of 3 processes and 0 restarts (--nnodes, --nproc-per-node,"
                        + " --max-restarts), this job has 2 nodes of 1 processes and 0 restarts");
        for (long rank : ranks) {
            assertTrue(TestProcesses.isRunning(rank), this::errText);
        }
        awaitErr("[launch] a launcher was refused: --node-rank 1 is taken by another launcher");
        // Stopping one launcher stops the others.
        second.cancel(true);
        assertEquals(1, first.get(), this::errText);
        TestProcesses.assertGone(ranks);
    }

    /** Otherwise it is silent until the end of its patience. */
    @Test
    void loneLauncherTimesOutWithAnError() throws Exception {
        Future<Integer> first = launch(0, 1, "sleep");
        assertRefused(node(1, 3, "sleep"), "this job has 2 nodes of 1 processes");
        awaitErr(" --max-restarts); still waiting for node(s) 1\n");
        first.cancel(true);
    }

    @Test
    void launchersOfOneNodeRankCountOnce() throws Exception {
        List<Future<Integer>> nodes = new ArrayList<>();
        for (int node : new int[] {0, 1, 1}) {
            nodes.add(launchers.submit(node(node, 1, "sleep").nodes(3, 3).build()::launch));
        }
        awaitErr("; give each launcher its own; still waiting for node(s) 2\n");
        assertEquals(Set.of(), TestProcesses.pids(outLines()));
        nodes.forEach(node -> node.cancel(true));
    }

    private static void assertRefused(LaunchOptions builder, String text) {
        String message =
                assertThrows(IllegalArgumentException.class, builder.build()::launch).getMessage();
        assertTrue(message.contains(text), message);
    }

    @Test
    void waitsForOtherNodesForTheTimeOfJoining() {
        Launcher launcher = node(0, 1).timeouts(0.6, 1).build();
        String message = assertThrows(CollectiveException.class, launcher::launch).getMessage();
        assertTrue(message.contains("fewer than 2 launchers came to 127.0.0.1:" + port), message);
        assertTrue(message.contains("join_timeout"), message);
    }

    /**
     * Launchers without node ranks agree on them; the first that binds the port serves the store.
     */
    @Test
    void nodesWithoutRanksAgree() throws Exception {
        Future<Integer> first = launchers.submit(node(-1, 2, "meet").build()::launch);
        Future<Integer> second = launchers.submit(node(-1, 2, "meet").build()::launch);
        assertEquals(0, first.get(), this::errText);
        assertEquals(0, second.get(), this::errText);
        for (int rank = 0; rank < 4; rank++) {
            String line = "[" + rank + "] met [0, 1, 2, 3]";
            assertTrue(outLines().contains(line), () -> line + " not in " + outLines());
        }
    }

    @ParameterizedTest
    @CsvSource({"0", "1"})
    void aFailureOfAnyNodeRestartsAll(int failing) throws Exception {
        List<Future<Integer>> nodes = new ArrayList<>();
        for (int node = 0; node < 2; node++) {
            LaunchOptions builder = node(node, 1, "one-fails-until", "2", "" + failing);
            nodes.add(launchers.submit(builder.maxRestarts(5).build()::launch));
        }
        assertEquals(0, nodes.get(0).get(), this::errText);
        assertEquals(0, nodes.get(1).get(), this::errText);
        assertTrue(
                outLines().containsAll(Set.of("[0] restart 2 of 5", "[1] restart 2 of 5")),
                () -> outLines().toString());
        assertTrue(errText().contains("starting all ranks again, restart 2 of 5"), this::errText);
    }

    @Test
    void theLastFailureCountsOnAllNodes() throws Exception {
        List<Future<Integer>> nodes = new ArrayList<>();
        for (int node = 0; node < 2; node++) {
            LaunchOptions builder = node(node, 1, "one-fails-until", "9", "1");
            nodes.add(launchers.submit(builder.maxRestarts(2).build()::launch));
        }
        assertEquals(42, nodes.get(0).get(), this::errText);
        assertEquals(42, nodes.get(1).get(), this::errText);
        assertFalse(errText().contains("restart 3"), this::errText);
    }

    /** The job begins with one node after the last call, and starts again when another comes. */
    @Test
    void newNodeJoinsTheJob() throws Exception {
        LaunchOptions one = node(-1, 1, "one-of", "2").nodes(1, 2);
        one.timeouts(60, 0.2);
        Future<Integer> first = launchers.submit(one.build()::launch);
        awaitRanks(1);
        LaunchOptions two = node(-1, 1, "one-of", "2").nodes(1, 2);
        Future<Integer> second = launchers.submit(two.build()::launch);
        assertEquals(0, first.get(), this::errText);
        assertEquals(0, second.get(), this::errText);
        // The first may end its attempt after the last call; then one begins with the second alone.
        Set<String> lines = Set.copyOf(outLines());
        assertTrue(
                IntStream.rangeClosed(1, 9)
                        .mapToObj(restart -> " one of 2, restart " + restart)
                        .anyMatch(end -> lines.containsAll(Set.of("[0]" + end, "[1]" + end))),
                lines::toString);
        assertTrue(errText().contains(" has come"), this::errText); // Not counted as a restart.
    }

    /** A launcher that is one too many waits for a place, and ends with the job. */
    @Test
    void aSpareLauncherEndsWithTheJob() throws Exception {
        List<Future<Integer>> two = List.of(launch(-1, 1, "sleep"), launch(-1, 1, "sleep"));
        Set<Long> ranks = awaitRanks(2);
        Future<Integer> spare = launch(-1, 1, "sleep");
        while (Thread.getAllStackTraces().values().stream().noneMatch(NodesTest::waitsForPlace)) {
            Thread.sleep(20);
        }
        ranks.forEach(rank -> ProcessHandle.of(rank).ifPresent(ProcessHandle::destroyForcibly));
        for (Future<Integer> each : two) {
            assertTrue(each.get() != 0, this::errText);
        }
        Throwable refused = assertThrows(ExecutionException.class, spare::get).getCause();
        assertTrue(refused.getMessage().endsWith(": the job has failed"), refused.getMessage());
    }

    private static boolean waitsForPlace(StackTraceElement[] stack) {
        return Arrays.stream(stack).anyMatch(frame -> frame.getMethodName().equals("get"))
                && Arrays.stream(stack)
                        .map(frame -> frame.getClassName() + "." + frame.getMethodName())
                        .anyMatch((Nodes.class.getName() + ".join")::equals);
    }

    private void awaitErr(String text) throws InterruptedException {
        while (!errText().contains(text)) {
            Thread.sleep(20);
        }
    }

    @ParameterizedTest
    @CsvSource({"KILL, 0", "TERM, 0", "TERM, 1", "STOP, 0", "STOP, 1"})
    void theEndOfALauncherStopsTheOthers(String signal, int node) throws Exception {
        Future<Integer> other = launch(1 - node, 1, "sleep");
        List<String> command = new ArrayList<>(List.of("env", "--default-signal=INT,TERM"));
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx64m", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.addAll(List.of(Launch.class.getName(), "--nproc", "1", "--nnodes", "2"));
        command.addAll(List.of("--node-rank", "" + node, "--master-addr", "127.0.0.1"));
        command.addAll(List.of("--master-port", "" + port, "--jvm-arg", "-Xmx64m"));
        command.addAll(List.of(RankProbe.class.getName(), "sleep"));
        Process launcher = new ProcessBuilder(command).redirectErrorStream(true).start();
        try {
            String line = launcher.inputReader().readLine();
            Set<Long> ranks = new HashSet<>(TestProcesses.pids(Set.of(line)));
            assertEquals(1, ranks.size(), line);
            ranks.addAll(awaitRanks(1));
            String kill = "kill -" + signal + " " + launcher.pid();
            new ProcessBuilder("sh", "-c", kill).start().waitFor();
            // A stopped launcher is known after 8 s, not when calls of the store give up after 30.
            assertTrue(other.get(25, TimeUnit.SECONDS) != 0, this::errText);
            if (signal.equals("STOP")) {
                launcher.destroyForcibly();
            }
            launcher.waitFor();
            TestProcesses.assertGone(ranks);
        } finally {
            launcher.destroyForcibly();
        }
    }

    @Test
    void rejectsInconsistentOptions() {
        assertRejected(node(2, 1), "between 0 and 1 with 2 node(s), not 2");
        assertRejected(node(-2, 1), "between 0 and 1");
        assertRejected(node(0, 1).nodes(0, 0), "at least 1, or MIN:MAX, not 0:0");
        assertRejected(node(0, 1).nodes(2, 1), "not 2:1");
        assertRejected(node(1, 1).nodes(1, 1), "between 0 and 0 with 1 node(s), not 1");
        assertRejected(node(0, 1).master("127.0.0.1", 0), "--master-port must be");
        assertRejected(node(0, 1 << 20).nodes(1, 1 << 20), "too many");
        assertRejected(node(0, 1).master(null, 1), "--master-addr");
    }

    private static void assertRejected(LaunchOptions builder, String text) {
        String message = assertThrows(IllegalArgumentException.class, builder::build).getMessage();
        assertTrue(message.contains(text), message);
    }
}
