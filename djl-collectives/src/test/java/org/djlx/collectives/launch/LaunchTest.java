// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import picocli.CommandLine;

/** The options of the launcher, and what it takes from variables. */
@Timeout(60)
class LaunchTest {

    private static final Map<String, String> SRUN =
            Map.of(
                    "SLURM_JOB_ID", "4",
                    "SLURM_STEP_ID", "0",
                    "SLURM_STEP_NUM_NODES", "3",
                    "SLURM_STEP_NUM_TASKS", "3",
                    "SLURM_STEP_NODELIST", "n[4-6]",
                    "SLURM_PROCID", "2",
                    "SLURM_NODEID", "2");

    private static Launcher launcher(Map<String, String> variables, String... args) {
        List<String> all = new ArrayList<>(Arrays.asList(args));
        all.add(RankProbe.class.getName());
        LaunchCommand command = new LaunchCommand();
        new CommandLine(command).setStopAtPositional(true).parseArgs(all.toArray(String[]::new));
        return new Launcher(command, variables);
    }

    @Test
    void singleNodeIgnoresVariables() {
        Launcher one = launcher(Map.of("MASTER_ADDR", "node0", "JOB_COMPLETION_INDEX", "1"));
        assertEquals("127.0.0.1:0", one.endpoint());
        assertEquals(1, one.maxNodes);
        assertEquals(-1, one.nodeRank);
    }

    @Test
    void aTaskOfSrunKnowsItsNodes() {
        Launcher node = launcher(SRUN, "--nproc-per-node", "2");
        assertEquals(3, node.maxNodes);
        assertEquals(2, node.nodeRank);
        String port = LaunchEnvironment.of(SRUN).get("MASTER_PORT");
        assertEquals("n4:" + port, node.endpoint());
        // Options win.
        node = launcher(SRUN, "--nnodes", "1:2", "--node-rank", "0", "--master-port", "29400");
        assertEquals(1, node.minNodes);
        assertEquals(2, node.maxNodes);
        assertEquals(0, node.nodeRank);
        assertEquals("n4:29400", node.endpoint());
    }

    @Test
    void aPodOfAnIndexedJobKnowsItsRank() {
        Map<String, String> pod =
                Map.of("JOB_COMPLETION_INDEX", "1", "MASTER_ADDR", "train-0.train");
        Launcher node = launcher(pod, "--nnodes", "2");
        assertEquals(1, node.nodeRank);
        assertEquals("train-0.train:29500", node.endpoint());
        // With an endpoint the launchers agree on ranks.
        node = launcher(pod, "--nnodes", "2", "--rdzv-endpoint", "other:29501");
        assertEquals(-1, node.nodeRank);
        assertEquals("other:29501", node.endpoint());
    }

    @Test
    void endpointMayLackAPortOrBeAnIpv6Address() {
        assertEquals("my_host:29501", endpoint("my_host:29501"));
        assertEquals("node0.example:29500", endpoint("node0.example"));
        assertEquals("::1:29501", endpoint("[::1]:29501"));
    }

    private static String endpoint(String option) {
        return launcher(Map.of(), "--nnodes", "2", "--rdzv-endpoint", option).endpoint();
    }

    @Test
    void wrongNumbersAreNamed() {
        for (String[] args :
                List.of(
                        new String[] {"--nnodes", "x"},
                        new String[] {"--nnodes", "2:1"},
                        new String[] {"--nproc-per-node", "many"},
                        new String[] {"--nproc-per-node", "99999999999"},
                        new String[] {"--nnodes", "99999:99999", "--nproc-per-node", "99999"},
                        new String[] {"--rdzv-conf", "join_timeout=-5"},
                        new String[] {"--rdzv-conf", "join_timeout=NaN"},
                        new String[] {"--rdzv-conf", "timeout=5"},
                        new String[] {"--rdzv-endpoint", "::1:29500"},
                        new String[] {"--rdzv-endpoint", "node0:port"},
                        new String[] {"--rdzv-endpoint", "node0:70000"})) {
            String message =
                    assertThrows(IllegalArgumentException.class, () -> launcher(SRUN, args))
                            .getMessage();
            assertTrue(message.matches("(?s).*( not |too many).*"), message);
        }
    }

    @Test
    void standaloneIgnoresAddresses() {
        String[] elsewhere = {"--standalone", "--rdzv-endpoint", "node0:29400", "--nproc", "2"};
        assertEquals("127.0.0.1:0", launcher(Map.of(), elsewhere).endpoint());
        String[] master = {"--standalone", "--master-addr", "node0", "--master-port", "29400"};
        assertEquals("127.0.0.1:0", launcher(Map.of(), master).endpoint());
        for (String backend : List.of("static", "c10d")) {
            String[] args = {"--rdzv-backend", backend, "--rdzv-endpoint", "node0:29400"};
            assertEquals("node0:29400", launcher(Map.of(), args).endpoint());
        }
        for (String[] wrong :
                List.of(
                        new String[] {"--rdzv-backend", "etcd"},
                        new String[] {"--standalone", "--nnodes", "2"})) {
            assertThrows(IllegalArgumentException.class, () -> launcher(Map.of(), wrong));
        }
    }

    @Test
    void missingPicocliIsNamed() throws Exception {
        String path =
                Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
                        .filter(entry -> !entry.contains("picocli"))
                        .collect(Collectors.joining(File.pathSeparator));
        Process process =
                new ProcessBuilder(
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                "-cp",
                                path,
                                Launch.class.getName(),
                                "--help")
                        .redirectErrorStream(true)
                        .start();
        String output = new String(process.getInputStream().readAllBytes());
        assertEquals(1, process.waitFor(), output);
        assertTrue(output.contains("add info.picocli:picocli:"), output);
        assertEquals(1, output.lines().count(), output);
    }

    /** PET_NAME sets --name, as with torchrun; an option wins. */
    @Test
    @Tag("slow")
    void variablesSetOptionsUnlessGiven() throws Exception {
        ProcessBuilder builder =
                new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-cp",
                        System.getProperty("java.class.path"),
                        Launch.class.getName(),
                        "--max-restarts",
                        "4",
                        RankProbe.class.getName(),
                        "environment",
                        "@argument");
        builder.environment().put("PET_NPROC_PER_NODE", "2");
        builder.environment().put("PET_MAX_RESTARTS", "5");
        builder.environment().put("PET_RDZV_ID", "some");
        builder.environment().put("PET_RDZV_CONF", "join_timeout=60,last_call_timeout=5");
        builder.environment().put("PET_NNODES", ""); // As not set.
        builder.environment().put("PET_STANDALONE", "1");
        Process process = builder.redirectErrorStream(true).start();
        List<String> lines = process.inputReader().lines().toList();
        assertEquals(0, process.waitFor(), lines::toString);
        assertTrue(
                lines.containsAll(
                        List.of(
                                "[1] WORLD_SIZE=2",
                                "[1] TORCHELASTIC_MAX_RESTARTS=4",
                                "[1] TORCHELASTIC_RUN_ID=some")),
                lines::toString);
    }
}
