// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Ranks under Debian's Slurm: a controller and two nodes of it, as processes of root. */
@Timeout(180)
@Tag("slow")
class SlurmTest {

    private static final List<String> NODES = List.of("n1", "n2");

    @TempDir private Path folder;

    private final List<Process> daemons = new ArrayList<>();

    /** Returns the first of adjacent free ports, below those of connections. */
    private static int freePorts(int count) {
        int first = 20_000 + (int) (ProcessHandle.current().pid() % 10_000);
        while (!IntStream.range(first, first + count).allMatch(SlurmTest::isFree)) {
            first++;
        }
        return first;
    }

    private static boolean isFree(int port) {
        try (ServerSocket socket = new ServerSocket(port)) {
            return socket.isBound();
        } catch (IOException e) {
            return false;
        }
    }

    private ProcessBuilder command(String... command) {
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.environment().put("SLURM_CONF", folder.resolve("slurm.conf").toString());
        builder.environment().put("OMP_NUM_THREADS", "1");
        return builder;
    }

    private String run(String... command) throws IOException, InterruptedException {
        Path output = folder.resolve("output");
        Process process = command(command).redirectOutput(output.toFile()).start();
        if (!process.waitFor(100, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new AssertionError("hangs: " + Files.readString(output));
        }
        return Files.readString(output);
    }

    @BeforeEach
    void start() throws Exception {
        boolean root = System.getProperty("user.name").equals("root");
        assumeTrue(
                root && Files.isExecutable(Path.of("/usr/sbin/slurmctld")),
                "Slurm is not installed, or this is not root: Debian's package is slurm-wlm");
        String host = Files.readString(Path.of("/proc/sys/kernel/hostname")).strip();
        int port = freePorts(3); // of the controller and the nodes
        StringBuilder text = new StringBuilder();
        text.append(
                """
                ClusterName=test
                SlurmctldHost=HOST(127.0.0.1)
                SlurmctldPort=PORT
                SlurmUser=root
                SlurmdUser=root
                AuthType=auth/none
                CredType=cred/none
                SlurmdParameters=config_overrides
                StateSaveLocation=FOLDER/state
                SlurmdSpoolDir=FOLDER/spool-%n
                SlurmctldPidFile=FOLDER/controller.pid
                SlurmdPidFile=FOLDER/%n.pid
                ProctrackType=proctrack/linuxproc
                TaskPlugin=task/none
                SwitchType=switch/none
                MpiDefault=none
                SelectType=select/cons_tres
                SelectTypeParameters=CR_CPU
                GresTypes=gpu
                PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=YES
                """
                        .replace("HOST", host)
                        .replace("PORT", "" + port)
                        .replace("FOLDER", folder.toString()));
        text.append("NodeName=n[1-2] NodeHostname=").append(host);
        text.append(" NodeAddr=127.0.0.1 Port=[").append(port + 1).append('-').append(port + 2);
        text.append("] CPUs=4 Gres=gpu:8\n");
        Files.writeString(folder.resolve("slurm.conf"), text);
        String devices = folder.resolve("gpu[0-7]").toString();
        Files.writeString(folder.resolve("gres.conf"), "Name=gpu File=" + devices + "\n");
        for (int gpu = 0; gpu < 8; gpu++) {
            Files.createFile(folder.resolve("gpu" + gpu)); // Slurm only counts them.
        }
        daemon("slurmctld", "-D");
        for (String node : NODES) {
            daemon("slurmd", "-D", "-N", node);
        }
        String state = "";
        while (!state.contains("2 idle")) {
            for (int i = 0; i < daemons.size(); i++) {
                String log = Files.readString(folder.resolve("daemon-" + i));
                assertTrue(daemons.get(i).isAlive(), log);
            }
            Thread.sleep(100);
            state = run("sinfo", "--noheader", "--format=%D %T").trim();
        }
    }

    private void daemon(String... command) throws IOException {
        Path log = folder.resolve("daemon-" + daemons.size());
        daemons.add(command(command).redirectOutput(log.toFile()).start());
    }

    @AfterEach
    void stop() throws InterruptedException {
        for (Process daemon : daemons) {
            daemon.destroyForcibly().waitFor();
        }
    }

    private static List<String> java() {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        String path = System.getProperty("java.class.path");
        return List.of(java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path);
    }

    /** Runs tasks on both nodes. */
    private String srun(int tasks, String export, Class<?> main, String... arguments)
            throws Exception {
        List<String> command = new ArrayList<>(List.of("srun", "-N", "2", "--label"));
        command.addAll(List.of("-n", "" + tasks));
        command.add("--export=" + export);
        command.addAll(java());
        command.add(main.getName());
        command.addAll(List.of(arguments));
        return run(command.toArray(String[]::new));
    }

    @Test
    void tasksOfSrunAreRanks() throws Exception {
        String understood = srun(4, "ALL", LaunchEnvironment.class);
        for (int rank = 0; rank < 4; rank++) {
            String line =
                    String.format("(?m)^%1$d: RANK=%1$d \\(SLURM_PROCID\\), ", rank)
                            + "WORLD_SIZE=4 \\(SLURM_STEP_NUM_TASKS\\), .*"
                            + "MASTER_ADDR=n1 \\(SLURM_STEP_NODELIST\\), .*"
                            + "DJLX_BIND_ADDRESS=n1 \\(MASTER_ADDR\\)$";
            assertTrue(Pattern.compile(line).matcher(understood).find(), understood);
        }
        assertEquals(5, understood.split(" \\(SLURM_JOB_ID\\)", -1).length, understood);
        // The name n1 is no address of this machine; the other values are those of Slurm.
        String met = srun(4, "ALL,MASTER_ADDR=127.0.0.1", RankProbe.class, "meet-as-ranks");
        for (int rank = 0; rank < 4; rank++) {
            assertTrue(met.contains(rank + ": rank " + rank + " met [0, 1, 2, 3]\n"), met);
        }
    }

    /** The job files of docs/operations.md, with a program of this test in place of the user's. */
    @ParameterizedTest
    @CsvSource({"0, 2, meet-as-ranks", "1, 1, meet"})
    void jobFilesRun(int index, int tasks, String probe) throws Exception {
        String page = Files.readString(Path.of("../docs/operations.md"));
        Matcher files = Pattern.compile("(?s)```bash\n(#!/bin/bash\n#SBATCH .*?)```").matcher(page);
        String file = files.results().toList().get(index).group(1);
        Path output = folder.resolve("job-output");
        Path job =
                Files.writeString(
                        folder.resolve("job"),
                        file.replace("java -cp \"app.jar:lib/*\"", String.join(" ", java()))
                                .replace("--nproc-per-node gpu", "--nproc-per-node 2")
                                .replace(
                                        "com.example.Train",
                                        RankProbe.class.getName() + " " + probe));
        List<String> command = new ArrayList<>(List.of("sbatch", "--output=" + output));
        command.add("--ntasks-per-node=" + tasks); // 16 JVMs would take long
        command.addAll(List.of("--export=ALL,MASTER_ADDR=127.0.0.1", job.toString()));
        String said = run(command.toArray(String[]::new));
        while (!run("squeue", "--noheader").isBlank()) { // sbatch --wait looks less often
            Thread.sleep(100);
        }
        said += Files.readString(output);
        assertEquals(5, said.split("met \\[0, 1, 2, 3]", -1).length, said);
    }

    /** A launcher for each node knows the nodes, its rank and the port. */
    @Test
    void tasksOfSrunAreLaunchersOfTheirNodes() throws Exception {
        String name = RankProbe.class.getName();
        String export = "ALL,MASTER_ADDR=127.0.0.1";
        String met = srun(2, export, Launch.class, "--nproc-per-node", "2", name, "meet");
        for (int rank = 0; rank < 4; rank++) {
            String line = rank / 2 + ": [" + rank + "] met [0, 1, 2, 3]\n";
            assertTrue(met.contains(line), line + met);
        }
    }
}
