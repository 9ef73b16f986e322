// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** The MPIs of this machine, and JVMs that their launchers start. */
public enum MpiRun {
    /** Open MPI. */
    OPEN_MPI("openmpi-bin", List.of("mpirun.openmpi", "mpirun"), "--oversubscribe"),
    /** MPICH. */
    MPICH("mpich", List.of("mpiexec.hydra"));

    /** What a job printed, and its exit code. */
    public record Result(int code, String output) {}

    private final String debianPackage;
    private final List<String> launchers;
    private final List<String> options;

    MpiRun(String debianPackage, List<String> launchers, String... options) {
        this.debianPackage = debianPackage;
        this.launchers = launchers;
        this.options = List.of(options);
    }

    /** Returns the launcher; skips the test if there is none. */
    private String launcher() {
        String found =
                launchers.stream()
                        .filter(MpiRun::isOnPath)
                        .filter(name -> this == MPICH || isOpenMpi(name))
                        .findFirst()
                        .orElse(null);
        assumeTrue(found != null, () -> "no " + this + ": Debian's package is " + debianPackage);
        return found;
    }

    private static boolean isOnPath(String name) {
        return Stream.of(System.getenv("PATH").split(":"))
                .anyMatch(folder -> Files.isExecutable(Path.of(folder, name)));
    }

    private static boolean isOpenMpi(String launcher) {
        try {
            Process process = new ProcessBuilder(launcher, "--version").start();
            return new String(process.getInputStream().readAllBytes()).contains("Open MPI");
        } catch (IOException e) {
            return false;
        }
    }

    /** Runs a main class in some processes, and waits for their end. */
    public Result run(int worldSize, Class<?> main, String... arguments)
            throws IOException, InterruptedException {
        return run(List.of(), worldSize, main, arguments);
    }

    /**
     * As {@link #run(int, Class, String...)}, each process in a PID namespace of its own, so that
     * they take each other for processes of other hosts; skips the test without the right to that.
     */
    public Result runOnHosts(int worldSize, Class<?> main, String argument)
            throws IOException, InterruptedException {
        List<String> unshare = List.of("unshare", "--pid", "--fork", "--mount-proc");
        List<String> check = Stream.concat(unshare.stream(), Stream.of("true")).toList();
        assumeTrue(new ProcessBuilder(check).start().waitFor() == 0, "no right to make namespaces");
        // A shell as the first process of the namespace, which nothing inside can stop.
        Stream<String> shell = Stream.of("sh", "-c", "\"$@\"; exit $?", "sh");
        return run(Stream.concat(unshare.stream(), shell).toList(), worldSize, main, argument);
    }

    /** As {@link #run(int, Class, String...)}, with the store's host given, but not its port. */
    public Result runWithAddress(String host, int worldSize, Class<?> main, String... arguments)
            throws IOException, InterruptedException {
        return run(List.of("env", "MASTER_ADDR=" + host), worldSize, main, arguments);
    }

    /** As {@link #run(int, Class, String...)}, with the store's address given to rank 0. */
    public Result runWithAddressOnRank0(int worldSize, Class<?> main, String... arguments)
            throws IOException, InterruptedException {
        String given = "[ $OMPI_COMM_WORLD_RANK = 1 ] || export MASTER_ADDR=localhost";
        String shell = given + " MASTER_PORT=1; exec \"$@\"";
        return run(List.of("sh", "-c", shell, "sh"), worldSize, main, arguments);
    }

    /** As {@link #run(int, Class, String...)}, of processes that prefer the library of Open MPI. */
    public Result runWithOpenMpi(int worldSize, Class<?> main)
            throws IOException, InterruptedException {
        OPEN_MPI.launcher();
        String shell = "OMPI_COMM_WORLD_RANK=$PMI_RANK exec \"$@\"";
        return run(List.of("sh", "-c", shell, "sh"), worldSize, main);
    }

    private Result run(List<String> wrapper, int worldSize, Class<?> main, String... arguments)
            throws IOException, InterruptedException {
        List<String> command = new ArrayList<>();
        command.add(launcher());
        command.addAll(options);
        command.addAll(List.of("-n", "" + worldSize));
        command.addAll(wrapper);
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.add("-Xmx512m");
        Arrays.stream(System.getProperty("test.started.jvm.args", "").split(" "))
                .filter(argument -> !argument.isEmpty())
                .forEach(command::add);
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), main.getName()));
        command.addAll(List.of(arguments));
        Path output = Files.createTempFile("mpi-", ".log");
        try {
            ProcessBuilder builder = new ProcessBuilder(command);
            builder.environment().put("OMP_NUM_THREADS", "1");
            builder.environment().put("OMPI_ALLOW_RUN_AS_ROOT", "1");
            if (wrapper.contains("unshare")) { // Shared memory needs process ids of one namespace.
                builder.environment().put("OMPI_MCA_btl", "self,tcp");
                builder.environment().put("MPIR_CVAR_NOLOCAL", "1");
            }
            builder.environment().put("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            builder.redirectErrorStream(true).redirectOutput(output.toFile());
            Process process = builder.start();
            try {
                if (!process.waitFor(180, TimeUnit.SECONDS)) {
                    throw new AssertionError("hangs; printed:\n" + Files.readString(output));
                }
            } finally {
                process.descendants().forEach(ProcessHandle::destroyForcibly);
                process.destroyForcibly();
            }
            return new Result(process.exitValue(), Files.readString(output));
        } finally {
            Files.delete(output);
        }
    }
}
