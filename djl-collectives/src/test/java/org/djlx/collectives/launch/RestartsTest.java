// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.UUID;
import java.util.stream.Stream;
import org.djlx.collectives.soak.Soak;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * A job on several nodes whose ranks and launchers are killed. Nodes are network namespaces where
 * root may make them, else plain processes.
 */
@Timeout(1200)
class RestartsTest {

    private static final int KILLS = 30;
    private static final int MOST_IDLE_MILLIS = 5000;

    @TempDir private Path folder;

    private final String mark = "mark-" + UUID.randomUUID();
    private final String prefix = "d" + ProcessHandle.current().pid() % 100_000;
    private final List<Process> launchers = new ArrayList<>();
    private final List<String> options = new ArrayList<>();
    private int nodes;
    private boolean namespaces;
    private int port;

    private static int run(String... command) throws IOException, InterruptedException {
        return new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start()
                .waitFor();
    }

    private String namespace(int node) {
        return prefix + "n" + node;
    }

    /** Makes a bridge, and for each node a namespace with an address of its own. */
    private void makeNodes(int number, String... launcherOptions) throws Exception {
        nodes = number;
        options.addAll(List.of(launcherOptions));
        for (int node = 0; node < nodes; node++) {
            launchers.add(null);
        }
        StringBuilder script =
                new StringBuilder("set -e\nip link add " + prefix + " type bridge\n");
        script.append("ip link set ").append(prefix).append(" up\n");
        for (int node = 0; node < nodes; node++) {
            String name = namespace(node);
            script.append(
                    """
                    ip netns add NAME
                    ip link add NAME type veth peer name eth0 netns NAME
                    ip link set NAME master BRIDGE up
                    ip -n NAME addr add 10.254.77.NUMBER/24 dev eth0
                    ip -n NAME link set eth0 up
                    ip -n NAME link set lo up
                    """
                            .replace("NAME", name)
                            .replace("BRIDGE", prefix)
                            .replace("NUMBER", "" + (node + 1)));
        }
        namespaces = run("sh", "-c", script.toString()) == 0;
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        System.out.println(nodes + " nodes, as " + (namespaces ? "namespaces" : "processes"));
    }

    private void start(int node) throws IOException {
        List<String> command = new ArrayList<>();
        if (namespaces) {
            command.addAll(List.of("ip", "netns", "exec", namespace(node)));
        }
        command.addAll(List.of("env", "--default-signal=INT,TERM"));
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx64m", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.addAll(List.of(Launch.class.getName(), "--nproc-per-node", "1"));
        command.addAll(List.of("--master-addr", namespaces ? "10.254.77.1" : "127.0.0.1"));
        command.addAll(List.of("--master-port", "" + port, "--node-rank", "" + node));
        command.addAll(options);
        command.addAll(List.of("--jvm-arg=-Xmx128m", "--jvm-arg=-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("--env", "OMP_NUM_THREADS=1"));
        command.addAll(List.of(ElasticMain.class.getName(), folder.toString(), mark));
        Path log = folder.resolve("launcher-" + node);
        launchers.set(
                node,
                new ProcessBuilder(command)
                        .redirectErrorStream(true)
                        .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile()))
                        .start());
    }

    private List<ProcessHandle> ranks() {
        return ProcessHandle.allProcesses()
                .filter(process -> process.info().commandLine().orElse("").contains(mark))
                .filter(
                        process ->
                                process.info()
                                        .commandLine()
                                        .orElse("")
                                        .contains(RankMain.class.getName() + " "))
                .filter(process -> process.info().command().orElse("").endsWith("java"))
                .toList();
    }

    private int steps() throws IOException {
        return ElasticMain.load(folder).losses().size();
    }

    /** Returns whether a process listens on the port of the store. */
    private boolean isServed() throws Exception {
        List<String> command = new ArrayList<>();
        if (namespaces) {
            command.addAll(List.of("ip", "netns", "exec", namespace(0)));
        }
        String listens = String.format("grep -q ':%04X [0-9A-F]*:0000 0A' /proc/net/tcp*", port);
        command.addAll(List.of("sh", "-c", listens));
        return run(command.toArray(String[]::new)) == 0;
    }

    private void awaitSteps(int more) throws Exception {
        int goal = steps() + more;
        while (steps() < goal) {
            for (Process launcher : launchers) {
                assertTrue(launcher.isAlive() || launcher.exitValue() != 2, this::logs);
            }
            Thread.sleep(50);
        }
    }

    private void awaitWorld(int ranks) throws Exception {
        Path world = folder.resolve("world");
        while (!Files.exists(world) || !Files.readString(world).equals("" + ranks)) {
            Thread.sleep(50);
        }
        awaitSteps(5);
    }

    private String logs() {
        StringBuilder all = new StringBuilder();
        for (int node = 0; node < nodes; node++) {
            try {
                String log = Files.readString(folder.resolve("launcher-" + node));
                all.append("\nnode ").append(node).append(":\n");
                all.append(log, Math.max(0, log.length() - 8000), log.length());
            } catch (IOException e) {
                all.append(e);
            }
        }
        return all.toString();
    }

    /**
     * Lets the job end, and compares its losses with those of one process without interruptions.
     */
    private void finish() throws Exception {
        assertTrue(isServed());
        Files.createFile(folder.resolve("finish"));
        for (Process launcher : launchers) {
            assertEquals(0, launcher.waitFor(), this::logs);
        }
        List<Double> losses = ElasticMain.load(folder).losses();
        ElasticMain.State state = ElasticMain.State.START;
        double[] gradients = new double[3 * ElasticMain.SAMPLES];
        for (int step = 0; step < losses.size(); step++) {
            for (int sample = 0; sample < ElasticMain.SAMPLES; sample++) {
                state.put(sample, gradients, 3 * sample);
            }
            state = state.step(gradients);
        }
        assertEquals(state.losses(), losses);
        assertTrue(losses.get(losses.size() - 1) < losses.get(0), losses::toString);
        TestProcesses.assertNoneHas(mark);
        assertFalse(isServed());
        try (Stream<Path> files = Files.list(folder)) {
            assertEquals(
                    nodes + 3L, // The logs, and what the job itself writes.
                    files.map(Path::getFileName).map(Path::toString).sorted().count());
        }
    }

    @AfterEach
    void removeNodes() throws Exception {
        launchers.stream().filter(launcher -> launcher != null).forEach(Process::destroyForcibly);
        TestProcesses.assertNoneHas(mark);
        for (int node = 0; namespaces && node < nodes; node++) {
            run("ip", "netns", "del", namespace(node));
        }
        if (namespaces) {
            run("ip", "link", "del", prefix);
        }
    }

    @BeforeEach
    void printSeed() {
        System.out.println("seed " + Soak.SEED);
    }

    /** A node leaves in order, and comes back: the job goes on without it meanwhile. */
    @Test
    @Tag("slow")
    void aNodeLeavesAndComesBack() throws Exception {
        makeNodes(3, "--nnodes", "1:3", "--max-restarts", "5");
        options.addAll(List.of("--rdzv-conf", "last_call_timeout=2"));
        for (int node = 0; node < 3; node++) {
            start(node);
        }
        awaitWorld(3);
        launchers.get(2).destroy();
        assertEquals(143, launchers.get(2).waitFor());
        awaitWorld(2);
        start(2);
        awaitWorld(3);
        finish();
    }

    /**
     * Ranks and launchers are killed at random moments, also while others start again. The
     * scheduler of the nodes, here this test, starts a killed launcher again.
     */
    @ParameterizedTest
    @ValueSource(ints = {2, 3})
    @Tag("soak")
    void ranksAndLaunchersAreKilled(int number) throws Exception {
        makeNodes(number, "--nnodes", "" + number, "--max-restarts", "1000");
        Random random = new Random(Soak.SEED);
        for (int node = 0; node < nodes; node++) {
            start(node);
        }
        awaitSteps(1);
        int kills = Math.max(3, Math.min(KILLS, Soak.SECONDS));
        for (int kill = 0; kill < kills; kill++) {
            Thread.sleep(random.nextInt(MOST_IDLE_MILLIS));
            List<ProcessHandle> ranks = ranks();
            int node = random.nextInt(nodes);
            if (random.nextBoolean() && !ranks.isEmpty()) {
                ranks.get(random.nextInt(ranks.size())).destroyForcibly();
            } else {
                launchers.get(node).destroyForcibly().waitFor();
                Thread.sleep(random.nextInt(MOST_IDLE_MILLIS / 4));
                start(node);
            }
            System.out.println("kill " + kill + " at step " + steps());
        }
        awaitSteps(10);
        finish();
    }
}
