// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Assertions;
import org.junit.jupiter.api.Assumptions;

/**
 * A launcher of one rank on each of two hosts: namespaces of this host for the network, processes
 * and the host's name, joined by a pair of virtual Ethernet devices. Neither sees the other's
 * processes. Host 0 and host 1 have the GPU of that number only, and NCCL takes them for two hosts.
 */
public final class TwoHosts implements AutoCloseable {

    /** Runs its arguments on each host, with the host's number in place of HOST. */
    private static final String SCRIPT =
            """
            set -euo pipefail
            mount --make-rprivate /
            own=$(readlink /proc/$$/ns/net)
            for host in 0 1; do
              unshare -n sleep infinity & net[host]=$!
              until [[ $(readlink "/proc/$!/ns/net") != "$own" ]]; do sleep 0.01; done
            done
            trap 'kill "${net[@]}"' EXIT
            ip link add eth0 netns "${net[0]}" type veth peer name eth1 netns "${net[1]}"
            for host in 0 1; do
              nsenter "--net=/proc/${net[host]}/ns/net" bash -euc "ip link set lo up
                ip addr add 10.77.0.$((host + 1))/24 dev eth$host; ip link set eth$host up"
            done
            for host in 0 1; do
              NCCL_HOSTID=host$host NCCL_SOCKET_IFNAME=eth$host NCCL_IB_DISABLE=1 CUDA_VISIBLE_DEVICES=$host \\
                nsenter "--net=/proc/${net[host]}/ns/net" unshare -pfum --kill-child --mount-proc \\
                bash -c 'hostname "$0"; exec "$@"' host$host "${@//HOST/$host}" >output$host 2>&1 &
              launcher[host]=$!
              echo $! >launcher$host
            done
            for host in 0 1; do
              code=0
              wait "${launcher[host]}" || code=$?
              echo $code >code$host
            done
            """;

    private final Path directory;
    private final Process script;

    private TwoHosts(Path directory, Process script) {
        this.directory = directory;
        this.script = script;
    }

    /** Skips the test, with the reason, where a user may not create namespaces. */
    public static void require(Path directory) throws IOException, InterruptedException {
        Path trial = Files.createDirectory(directory.resolve("trial"));
        boolean created = run(trial, List.of("true")).waitFor() == 0;
        String reason = "needs namespaces: " + Files.readString(trial.resolve("script"));
        Assumptions.assumeTrue(created, reason);
    }

    /**
     * Starts the launchers.
     *
     * @param directory for their output
     * @param program the main class of the ranks, and its arguments
     */
    public static TwoHosts launch(Path directory, String... program) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.add("-Xmx256m");
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.add(Launch.class.getName());
        command.addAll(List.of("--nnodes", "2", "--node-rank", "HOST", "--nproc-per-node", "1"));
        command.addAll(List.of("--master-addr", "10.77.0.1"));
        command.addAll(List.of(program));
        try {
            return new TwoHosts(directory, run(directory, command));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static Process run(Path directory, List<String> program) throws IOException {
        List<String> command = new ArrayList<>();
        command.addAll(List.of("unshare", "-rmn", "bash", "-c", SCRIPT, "bash"));
        command.addAll(program);
        return new ProcessBuilder(command)
                .directory(directory.toFile())
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve("script").toFile())
                .start();
    }

    /** Waits for a host's launcher, and returns its exit code. */
    public int await(int host) throws InterruptedException {
        Assertions.assertTrue(script.waitFor(200, TimeUnit.SECONDS), () -> output(0) + output(1));
        return Integer.parseInt(read("code" + host).strip());
    }

    /** Kills all processes of a host. */
    public void kill(int host) {
        ProcessHandle.of(Long.parseLong(read("launcher" + host).strip()))
                .ifPresent(ProcessHandle::destroyForcibly);
    }

    /** Returns what a host's launcher and its rank have printed so far. */
    public String output(int host) {
        return read("output" + host);
    }

    private String read(String file) {
        Path path = directory.resolve(file);
        try {
            return Files.exists(path) ? Files.readString(path) : "";
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public void close() {
        script.descendants().forEach(ProcessHandle::destroyForcibly);
        script.destroyForcibly();
    }
}
