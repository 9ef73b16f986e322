// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.IOException;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.launch.Nodes.Attempt;
import org.djlx.collectives.launch.Nodes.Result;
import org.djlx.collectives.store.TcpStore;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;

/**
 * Runs a main class in several JVMs of this host, one for each rank, with the environment variables
 * of torchrun. A job may have several launchers; the failure of a rank or a launcher then ends and
 * restarts the ranks of all.
 *
 * <p>The JVMs run the same java executable on the same class path as this one. Each has its own
 * session ({@link Sessions}), and its output is printed with a prefix ({@link PrefixedOutput}).
 * When a rank exits with a code other than 0, or this JVM shuts down, the ranks are stopped:
 * SIGTERM, then SIGKILL after the grace period. Immutable; each call of {@link #launch} is a
 * separate job.
 */
final class Launcher {

    static final String DEFAULT_ADDRESS = "127.0.0.1";
    static final String DEFAULT_PORT = "29500"; // torchrun's, with several nodes

    private static final String OMP_NUM_THREADS = "OMP_NUM_THREADS";
    private static final String HOME = "djlx.home";
    private static final Pattern ENDPOINT = Pattern.compile("(\\[[^]]+]|[^:\\[\\]]+)(?::(.+))?");
    private static final double LONGEST_SECONDS = 1e9;

    final int minNodes;
    final int maxNodes;
    final String masterAddress;
    final int nodeRank; // -1 if the launchers agree on it
    final Duration joinTimeout;
    final Duration lastCall;

    private final LaunchCommand options;
    private final int processes;
    private final String bindAddress;
    private final int masterPort;
    private final List<String> command;

    /**
     * Completes the options from the variables of a scheduler; throws IllegalArgumentException that
     * names a wrong one.
     */
    Launcher(LaunchCommand options, Map<String, String> variables) {
        this.options = options;
        processes = processes(options.processes);
        boolean step = variables.containsKey("SLURM_STEP_ID");
        String count = step ? variables.get("SLURM_STEP_NUM_NODES") : null;
        String[] range = orElse(orElse(options.nodes, count), "1").split(":", 2);
        minNodes = number("--nnodes", range[0]);
        maxNodes = number("--nnodes", range[range.length - 1]);
        joinTimeout = seconds("join_timeout", 600);
        lastCall = seconds("last_call_timeout", 30);
        String rank = options.nodeRank == null ? null : options.nodeRank.toString();
        String address = options.masterAddress;
        String port = options.masterPort == null ? null : options.masterPort.toString();
        String bind = options.bindAddress;
        refuseIf(
                !List.of("static", "c10d").contains(options.backend),
                "--rdzv-backend is static or c10d, not " + options.backend);
        refuseIf(
                options.standalone && maxNodes > 1,
                "--standalone runs on one host; with --nnodes " + options.nodes + ", leave it out");
        if (options.standalone) {
            address = null;
            port = null;
        } else if (options.endpoint != null) {
            Matcher endpoint = ENDPOINT.matcher(options.endpoint.trim());
            refuseIf(
                    !endpoint.matches(),
                    "--rdzv-endpoint must be HOST:PORT or [IPv6]:PORT, not " + options.endpoint);
            address = orElse(address, endpoint.group(1).replaceAll("[\\[\\]]", ""));
            port = orElse(port, endpoint.group(2));
        }
        if (maxNodes > 1) {
            LaunchEnvironment scheduler = LaunchEnvironment.of(variables);
            if (options.endpoint == null) {
                rank = orElse(rank, step ? variables.get("SLURM_NODEID") : null);
                rank = orElse(rank, variables.get("JOB_COMPLETION_INDEX"));
            }
            address = orElse(address, scheduler.get("MASTER_ADDR"));
            port = orElse(orElse(port, scheduler.get("MASTER_PORT")), DEFAULT_PORT);
            bind = orElse(bind, variables.get("DJLX_BIND_ADDRESS"));
        }
        nodeRank = number("--node-rank", orElse(rank, "-1"));
        masterPort = number("the master port", orElse(port, "0"));
        refuseIf(
                maxNodes > 1 && (address == null || masterPort == 0),
                "With several nodes, --rdzv-endpoint or --master-addr and --master-port must be"
                        + " given, the same on all: an address of one node, and a free port there");
        masterAddress = orElse(address, DEFAULT_ADDRESS);
        bindAddress = orElse(bind, masterAddress);
        checkNumbers();
        checkMainClass();
        for (String name : rankEnvironment(0, new Attempt(0, 0, 0, 1), 0).keySet()) {
            refuseIf(
                    options.environment.containsKey(name),
                    "--env %s is not allowed: the launcher sets this variable".formatted(name));
        }
        command = command();
    }

    private static String orElse(String value, String otherwise) {
        return value == null || value.isBlank() ? otherwise : value;
    }

    private static int number(String option, String text) {
        try {
            return Integer.parseInt(text.trim());
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(option + " is not a number: " + text, e);
        }
    }

    private static int processes(String text) {
        int cores = Runtime.getRuntime().availableProcessors();
        if (text.equals("cpu")) {
            return cores;
        }
        if (!text.equals("gpu") && !text.equals("auto")) {
            return number("--nproc-per-node", text);
        }
        int gpus = NativeLibrary.CUDA.isAvailable() ? CudaDevice.count() : 0;
        refuseIf(text.equals("gpu") && gpus == 0, "--nproc-per-node gpu: this host has no GPU");
        return gpus > 0 ? gpus : cores;
    }

    private Duration seconds(String key, double otherwise) {
        double seconds = options.conf.getOrDefault(key, otherwise);
        refuseIf(
                !(seconds > 0 && seconds <= LONGEST_SECONDS),
                "--rdzv-conf %s must be more than 0 and at most %.0f seconds, not %s"
                        .formatted(key, LONGEST_SECONDS, seconds));
        return Duration.ofMillis(Math.max(1, (long) (seconds * 1000)));
    }

    private void checkNumbers() {
        refuseIf(
                processes < 1,
                "The number of processes must be at least 1, not %s".formatted(processes));
        refuseIf(
                masterPort < 0 || masterPort > 65535,
                "The master port must be between 0 and 65535, not %s".formatted(masterPort));
        refuseIf(
                options.maxRestarts < 0,
                "the number of restarts must be 0 or more, not %s".formatted(options.maxRestarts));
        refuseIf(
                minNodes < 1 || minNodes > maxNodes,
                "The number of nodes must be at least 1, or MIN:MAX, not %d:%d"
                        .formatted(minNodes, maxNodes));
        refuseIf(
                nodeRank < -1 || nodeRank >= maxNodes,
                "The node rank must be between 0 and %d with %d node(s), not %d"
                        .formatted(maxNodes - 1, maxNodes, nodeRank));
        refuseIf(
                (long) maxNodes * processes > Integer.MAX_VALUE,
                "%s nodes of %s processes are too many".formatted(maxNodes, processes));
        for (String key : options.conf.keySet()) {
            refuseIf(
                    !List.of("join_timeout", "last_call_timeout").contains(key),
                    "--rdzv-conf takes join_timeout and last_call_timeout, not " + key);
        }
    }

    /** Checks the main class once here; otherwise every rank would fail. */
    private void checkMainClass() {
        String name = options.main;
        refuseIf(name == null, "no main class is set");
        try {
            Class<?> type = Class.forName(name, false, Launcher.class.getClassLoader());
            refuseIf(
                    !Modifier.isStatic(type.getMethod("main", String[].class).getModifiers()),
                    "%s.main is not static".formatted(name));
        } catch (ClassNotFoundException | LinkageError e) {
            throw new IllegalArgumentException(
                    "No class "
                            + name
                            + " on the class path; name its jar with -cp, or in the environment"
                            + " variable CLASSPATH with samples/run.sh",
                    e);
        } catch (NoSuchMethodException e) {
            throw new IllegalArgumentException(name + " has no public method main(String[])", e);
        }
    }

    static void refuseIf(boolean wrong, String message) {
        if (wrong) {
            throw new IllegalArgumentException(message);
        }
    }

    /**
     * Starts the ranks and waits until all have exited; returns the exit code, as {@link
     * Launch#run}. If a rank failed and restarts are left, starts all ranks again. Throws
     * IOException if a process cannot be started, or there is no {@code setsid}; the ranks have
     * been stopped if it throws.
     */
    int launch() throws IOException, InterruptedException {
        Attempt attempt = new Attempt(0, 0, 0, 1);
        try (Nodes nodes = maxNodes == 1 ? null : new Nodes(this, options.err)) {
            while (true) {
                attempt = nodes == null ? attempt : nodes.join();
                Result result = nodes == null ? runAlone(attempt) : runNode(nodes, attempt);
                if (!restarts(attempt, result)) {
                    return result.code();
                }
                sayAgain(attempt.failures() + 1, result);
                if (nodes == null) {
                    attempt = new Attempt(attempt.generation() + 1, attempt.failures() + 1, 0, 1);
                } else {
                    nodes.again(result);
                }
            }
        }
    }

    private Result runAlone(Attempt attempt) throws IOException, InterruptedException {
        try (TcpStore store = store(true, joinTimeout);
                RankProcesses ranks = processes(attempt)) {
            start(ranks, store.port(), attempt);
            return ranks.await();
        }
    }

    private Result runNode(Nodes nodes, Attempt attempt) throws IOException, InterruptedException {
        try (RankProcesses ranks = processes(attempt)) {
            nodes.watch(ranks::giveUp);
            start(ranks, masterPort, attempt);
            Result result = ranks.await();
            if (result.code() == 0) {
                return nodes.awaitOthers();
            }
            return result.isFinal() ? nodes.resultOr(result) : nodes.fail(result);
        }
    }

    private RankProcesses processes(Attempt attempt) {
        int first = attempt.node() * processes;
        return new RankProcesses(first, options.gracePeriod, options.out, options.err);
    }

    /** Returns whether all ranks start again after an attempt. */
    boolean restarts(Attempt attempt, Result result) {
        return result.code() == Nodes.NODE_COME
                || result.code() != 0
                        && attempt.failures() < options.maxRestarts
                        && !result.isFinal();
    }

    private void sayAgain(int failures, Result result) {
        String why =
                result.code() == Nodes.NODE_COME
                        ? result.reason()
                        : "restart " + failures + " of " + options.maxRestarts;
        RankProcesses.say(options.err, "starting all ranks again, " + why);
    }

    /** Describes the options that must be the same in all launchers of a job. */
    String job() {
        return (minNodes == maxNodes ? "" : minNodes + " to ")
                + maxNodes
                + " nodes of "
                + processes
                + " processes and "
                + options.maxRestarts
                + " restarts (--nnodes, --nproc-per-node, --max-restarts)";
    }

    String endpoint() {
        return masterAddress + ":" + masterPort;
    }

    /** Connects to the store, or serves it. For port 0 the system chooses a free port. */
    TcpStore store(boolean serves, Duration timeout) {
        return TcpStore.builder()
                .setHost(masterAddress)
                .setPort(masterPort)
                .optServer(serves)
                .optBindAddress(bindAddress)
                .optMark("launch/" + options.runId)
                .optTimeout(timeout)
                .build();
    }

    private void start(RankProcesses ranks, int port, Attempt attempt) throws IOException {
        for (int rank = 0; rank < processes; rank++) {
            ProcessBuilder process = new ProcessBuilder(command);
            process.environment().putAll(options.environment);
            process.environment().putIfAbsent(OMP_NUM_THREADS, ompThreads());
            Map<String, String> variables = rankEnvironment(rank, attempt, port);
            process.environment().putAll(variables);
            ranks.start(process, logFolder(attempt, variables.get("RANK")));
        }
    }

    private Path logFolder(Attempt attempt, String rank) throws IOException {
        if (options.logs == null) {
            return null;
        }
        Path folder = options.logs.resolve("attempt_" + attempt.generation()).resolve(rank);
        try {
            return Files.createDirectories(folder);
        } catch (IOException e) { // Its message may be the path alone.
            throw new IOException("--log-dir: cannot create the folder " + folder + ": " + e, e);
        }
    }

    private List<String> command() {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        String home = System.getProperty(HOME);
        if (home != null) {
            // Commands find their default files by this property.
            command.add("-D" + HOME + "=" + home);
        }
        command.addAll(options.jvmArgs);
        command.add("-cp");
        command.add(System.getProperty("java.class.path"));
        command.add(RankMain.class.getName());
        command.add(options.main);
        command.addAll(options.args);
        return Sessions.command(command);
    }

    private Map<String, String> rankEnvironment(int localRank, Attempt attempt, int port) {
        Map<String, String> variables = new LinkedHashMap<>();
        variables.put("LOCAL_RANK", Integer.toString(localRank));
        variables.put("LOCAL_WORLD_SIZE", Integer.toString(processes));
        for (String name : List.of("RANK", "ROLE_RANK")) {
            variables.put(name, Integer.toString(attempt.node() * processes + localRank));
        }
        for (String name : List.of("WORLD_SIZE", "ROLE_WORLD_SIZE")) {
            variables.put(name, Integer.toString(attempt.nodes() * processes));
        }
        variables.put("GROUP_RANK", Integer.toString(attempt.node()));
        variables.put("GROUP_WORLD_SIZE", Integer.toString(attempt.nodes()));
        variables.put("ROLE_NAME", "default");
        variables.put("MASTER_ADDR", masterAddress);
        variables.put("MASTER_PORT", Integer.toString(port));
        variables.put("TORCHELASTIC_RESTART_COUNT", Integer.toString(attempt.generation()));
        variables.put("TORCHELASTIC_MAX_RESTARTS", Integer.toString(options.maxRestarts));
        variables.put("TORCHELASTIC_RUN_ID", options.runId);
        variables.put("TORCHELASTIC_USE_AGENT_STORE", "True");
        return variables;
    }

    /** Returns each rank's share of the cores; libtorch's default is all cores in each rank. */
    private String ompThreads() {
        return Integer.toString(
                TorchThreads.share(Runtime.getRuntime().availableProcessors(), processes));
    }
}
