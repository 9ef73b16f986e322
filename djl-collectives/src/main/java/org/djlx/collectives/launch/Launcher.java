// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.djlx.collectives.TorchThreads;
import org.djlx.collectives.launch.Nodes.Attempt;
import org.djlx.collectives.launch.Nodes.Result;
import org.djlx.collectives.store.TcpStore;

/**
 * Runs a main class in several JVMs of this host, one for each rank, with the environment variables
 * of torchrun. A job may have {@linkplain Builder#optNodes several launchers}; the failure of a
 * rank or a launcher then ends and restarts the ranks of all.
 *
 * <p>The JVMs run the same java executable on the same class path as the caller. The launcher
 * prints each line of a rank with the prefix {@code [rank] }. A carriage return also ends a line.
 * Lines over 64 KiB are cut into pieces. When a rank exits with a code other than 0, the other
 * ranks are stopped: SIGTERM, then SIGKILL after the grace period. The same happens when the
 * calling JVM shuts down. Each rank runs in its own session ({@code setsid} of util-linux). Once
 * the rank has ended, or if the launcher is killed, the processes left in the session are killed,
 * too. Only processes that have started their own session survive.
 *
 * <pre>{@code
 * int exitCode = Launcher.builder().setProcesses(4).setMainClass("com.example.Train").build().launch();
 * }</pre>
 *
 * <p>With {@linkplain Builder#optMaxRestarts restarts}, all ranks start again after a failure, with
 * {@code TORCHELASTIC_RESTART_COUNT} one higher, and on one node with a new store. The job itself
 * must save and restore its state.
 *
 * <p>A launcher is immutable; each call of {@link #launch} is a separate job.
 */
public final class Launcher {

    /** The default MASTER_ADDR, for ranks on one node. */
    public static final String DEFAULT_MASTER_ADDRESS = "127.0.0.1";

    private static final String OMP_NUM_THREADS = "OMP_NUM_THREADS";
    private static final String HOME = "djlx.home";
    private static final String FINAL = "stopped"; // reason of a result that ends the job

    final int minNodes;
    final int maxNodes;
    final int nodeRank; // -1 if the launchers agree on it
    final String masterAddress;
    final Duration joinTimeout;
    final Duration lastCall;

    private final int processes;
    private final String bindAddress;
    private final int masterPort;
    private final String runId;
    private final int maxRestarts;
    private final Path logs; // null for none
    private final Map<String, String> environment;
    private final List<String> command;
    private final Duration gracePeriod;
    private final PrintStream out;
    private final PrintStream err;

    private Launcher(Builder builder) {
        processes = builder.processes;
        minNodes = builder.minNodes;
        maxNodes = builder.maxNodes;
        nodeRank = builder.nodeRank;
        masterAddress =
                builder.masterAddress == null ? DEFAULT_MASTER_ADDRESS : builder.masterAddress;
        bindAddress = builder.bindAddress == null ? masterAddress : builder.bindAddress;
        masterPort = builder.masterPort;
        runId = builder.runId;
        joinTimeout = builder.joinTimeout;
        lastCall = builder.lastCall;
        maxRestarts = builder.maxRestarts;
        logs = builder.logs;
        environment = builder.environment;
        command = command(builder);
        gracePeriod = builder.gracePeriod;
        out = builder.out;
        err = builder.err;
        for (String name : rankEnvironment(0, new Attempt(0, 0, 0, 1), 0).keySet()) {
            refuseIf(
                    environment.containsKey(name),
                    "--env %s is not allowed: the launcher sets this variable".formatted(name));
        }
    }

    static void refuseIf(boolean wrong, String message) {
        if (wrong) {
            throw new IllegalArgumentException(message);
        }
    }

    /** {@return a builder of launchers} */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Starts the ranks and waits until all have exited. If a rank failed and restarts are left,
     * starts all ranks again.
     *
     * @return the exit code:
     *     <ul>
     *       <li>0 if every rank returned 0
     *       <li>otherwise the exit code of the rank, here or on another node, that failed first
     *           since the last restart; 128 plus the signal's number if a signal ended that rank
     *       <li>141 (SIGPIPE) if stdout was closed: the launcher stops the ranks and does not
     *           restart them
     *     </ul>
     *
     * @throws IOException if a process cannot be started, or there is no {@code setsid}
     * @throws InterruptedException if the thread is interrupted; the ranks have been stopped then
     */
    public int launch() throws IOException, InterruptedException {
        if (maxNodes > 1) {
            return launchNode();
        }
        Attempt attempt = new Attempt(0, 0, 0, 1);
        while (true) {
            Result result;
            try (TcpStore store = store(true, joinTimeout);
                    RankProcesses ranks = new RankProcesses(0, gracePeriod, out, err)) {
                start(ranks, store.port(), attempt);
                RankProcesses.Outcome outcome = ranks.await();
                result = new Result(outcome.code(), "");
                if (!outcome.rankFailed()) {
                    return outcome.code();
                }
            }
            if (!restarts(attempt, result)) {
                return result.code();
            }
            int next = attempt.generation() + 1;
            attempt = new Attempt(next, next, 0, 1);
            sayAgain(attempt.failures(), result);
        }
    }

    /** Runs this node's ranks of a job on several nodes, again after each failure of any node. */
    private int launchNode() throws IOException, InterruptedException {
        try (Nodes nodes = new Nodes(this, err)) {
            while (true) {
                Attempt attempt = nodes.join();
                Result result = runNode(nodes, attempt);
                if (result.code() == 0 || !restarts(attempt, result)) {
                    return result.code();
                }
                nodes.again(result);
                sayAgain(attempt.failures() + 1, result);
            }
        }
    }

    private Result runNode(Nodes nodes, Attempt attempt) throws IOException, InterruptedException {
        int first = attempt.node() * processes;
        try (RankProcesses ranks = new RankProcesses(first, gracePeriod, out, err)) {
            nodes.watch(
                    result ->
                            ranks.giveUp(
                                    "another node has failed or come: " + result.reason(),
                                    result.code()));
            start(ranks, masterPort, attempt);
            RankProcesses.Outcome outcome = ranks.await();
            if (outcome.code() == 0) {
                return nodes.awaitOthers();
            }
            String reason = "a rank of node " + attempt.node() + " exited with " + outcome.code();
            if (outcome.rankFailed()) {
                return nodes.fail(new Result(outcome.code(), reason));
            }
            Result result = nodes.result();
            return result == null ? new Result(outcome.code(), FINAL) : result;
        }
    }

    /** Returns whether all ranks start again after an attempt that failed. */
    boolean restarts(Attempt attempt, Result result) {
        return result.code() == Nodes.NODE_COME
                || attempt.failures() < maxRestarts && !result.reason().equals(FINAL);
    }

    private void sayAgain(int failures, Result result) {
        String why =
                result.code() == Nodes.NODE_COME
                        ? result.reason()
                        : "restart " + failures + " of " + maxRestarts;
        RankProcesses.say(err, "starting all ranks again, " + why);
    }

    /** Returns what has to be the same in all launchers of a job. */
    String job() {
        return (minNodes == maxNodes ? "" : minNodes + " to ")
                + maxNodes
                + " nodes of "
                + processes
                + " processes and "
                + maxRestarts
                + " restarts (--nnodes, --nproc-per-node, --max-restarts)";
    }

    String endpoint() {
        return masterAddress + ":" + masterPort;
    }

    /** Connects to the store, or serves it. A free port is bound as soon as it is chosen. */
    TcpStore store(boolean serves, Duration timeout) {
        return TcpStore.builder()
                .setHost(masterAddress)
                .setPort(masterPort)
                .optServer(serves)
                .optBindAddress(bindAddress)
                .optMark("launch/" + runId)
                .optTimeout(timeout)
                .build();
    }

    private void start(RankProcesses ranks, int port, Attempt attempt) throws IOException {
        for (int rank = 0; rank < processes; rank++) {
            ProcessBuilder process = new ProcessBuilder(command);
            process.environment().putAll(environment);
            process.environment().putIfAbsent(OMP_NUM_THREADS, ompThreads());
            Map<String, String> variables = rankEnvironment(rank, attempt, port);
            process.environment().putAll(variables);
            Path folder = null;
            if (logs != null) {
                folder = logs.resolve("attempt_" + attempt.generation());
                folder = Files.createDirectories(folder.resolve(variables.get("RANK")));
            }
            ranks.start(process, folder);
        }
    }

    private static List<String> command(Builder builder) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        String home = System.getProperty(HOME);
        if (home != null) {
            // Commands find their default files by this property.
            command.add("-D" + HOME + "=" + home);
        }
        command.addAll(builder.jvmArgs);
        command.add("-cp");
        command.add(System.getProperty("java.class.path"));
        command.add(RankMain.class.getName());
        command.add(builder.mainClass);
        command.addAll(builder.args);
        return Sessions.command(command);
    }

    /** Returns the variables that torchrun sets. */
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
        variables.put("TORCHELASTIC_MAX_RESTARTS", Integer.toString(maxRestarts));
        variables.put("TORCHELASTIC_RUN_ID", runId);
        variables.put("TORCHELASTIC_USE_AGENT_STORE", "True");
        return variables;
    }

    /** Returns each rank's share of the cores; libtorch's default is all cores in each rank. */
    private String ompThreads() {
        return Integer.toString(
                TorchThreads.share(Runtime.getRuntime().availableProcessors(), processes));
    }

    /** Collects the options of a {@link Launcher}. */
    public static final class Builder {

        private int processes;
        private String mainClass;
        private List<String> args = List.of();
        private int minNodes = 1;
        private int maxNodes = 1;
        private int nodeRank = -1;
        private String masterAddress;
        private String bindAddress;
        private int masterPort;
        private String runId = "none";
        private Duration joinTimeout = Duration.ofMinutes(10);
        private Duration lastCall = Duration.ofSeconds(30);
        private Path logs;
        private int maxRestarts;
        private Map<String, String> environment = Map.of();
        private List<String> jvmArgs = List.of();
        private Duration gracePeriod = Duration.ofSeconds(15);
        private PrintStream out = System.out;
        private PrintStream err = System.err;

        private Builder() {}

        /**
         * Sets the number of processes of each node. Required.
         *
         * @param processes the number, which is the world size on one node
         * @return this builder
         */
        public Builder setProcesses(int processes) {
            this.processes = processes;
            return this;
        }

        /**
         * Sets the class whose main method each rank runs. Required.
         *
         * @param mainClass its full name
         * @return this builder
         */
        public Builder setMainClass(String mainClass) {
            this.mainClass = mainClass;
            return this;
        }

        /**
         * Sets the arguments of the main method.
         *
         * @param args the arguments; none by default
         * @return this builder
         */
        public Builder optArgs(List<String> args) {
            this.args = List.copyOf(args);
            return this;
        }

        /**
         * Sets the number of launchers of the job, usually one per host; 1 by default. All must
         * have the same number of processes, of restarts, and the same master address and port.
         *
         * @param least the number with which the job goes on if a node is lost and does not come
         *     back
         * @param most the number at which it begins at once; a node that comes later starts all
         *     ranks again
         * @return this builder
         */
        public Builder optNodes(int least, int most) {
            minNodes = least;
            maxNodes = most;
            return this;
        }

        /**
         * Sets the rank of this node. The launcher of node 0 serves the store. Unless set, the
         * launchers agree on their ranks, and a launcher on the host of the master address serves
         * the store.
         *
         * @param nodeRank the rank, from 0, another one on each node; -1 for none
         * @return this builder
         */
        public Builder optNodeRank(int nodeRank) {
            this.nodeRank = nodeRank;
            return this;
        }

        /**
         * Sets MASTER_ADDR, the address of the job's store, to which launchers and ranks connect.
         *
         * @param masterAddress the address; {@value #DEFAULT_MASTER_ADDRESS} by default and for
         *     null. Required with several nodes
         * @return this builder
         */
        public Builder optMasterAddress(String masterAddress) {
            this.masterAddress = masterAddress;
            return this;
        }

        /**
         * Sets the address on which the store listens.
         *
         * @param bindAddress an address of its host, {@code 0.0.0.0} for all; null, the default,
         *     for the master address
         * @return this builder
         */
        public Builder optBindAddress(String bindAddress) {
            this.bindAddress = bindAddress;
            return this;
        }

        /**
         * Sets MASTER_PORT.
         *
         * @param masterPort the port; 0, a free one, by default. Required with several nodes
         * @return this builder
         */
        public Builder optMasterPort(int masterPort) {
            this.masterPort = masterPort;
            return this;
        }

        /**
         * Sets the name of the job; launchers with another one do not meet.
         *
         * @param runId the name; {@code none} by default
         * @return this builder
         */
        public Builder optRunId(String runId) {
            this.runId = Objects.requireNonNull(runId, "runId");
            return this;
        }

        /**
         * Sets how long launchers wait for each other, before each attempt.
         *
         * @param join for the least number of nodes; 10 minutes by default
         * @param last for more, after the least number has come; 30 seconds by default
         * @return this builder
         */
        public Builder optTimeouts(Duration join, Duration last) {
            joinTimeout = Objects.requireNonNull(join, "join");
            lastCall = Objects.requireNonNull(last, "last");
            return this;
        }

        /**
         * Sets the number of restarts of all ranks, on all nodes, after a rank or a launcher has
         * failed. Restarts because a node comes are not counted.
         *
         * @param maxRestarts the number; 0 by default
         * @return this builder
         */
        public Builder optMaxRestarts(int maxRestarts) {
            this.maxRestarts = maxRestarts;
            return this;
        }

        /**
         * Sets the folder of log files: {@code attempt_N/RANK/stdout.log} and {@code stderr.log},
         * where N counts restarts. The output is printed all the same.
         *
         * @param folder the folder, which is created; null, the default, for no files
         * @return this builder
         */
        public Builder optLogDirectory(Path folder) {
            logs = folder;
            return this;
        }

        /**
         * Sets environment variables of the ranks, in addition to the inherited ones. Variables
         * that the launcher sets, such as RANK, are not allowed.
         *
         * @param environment the variables; none by default
         * @return this builder
         */
        public Builder optEnvironment(Map<String, String> environment) {
            this.environment = Map.copyOf(environment);
            return this;
        }

        /**
         * Sets JVM options of the ranks.
         *
         * @param jvmArgs the options; none by default
         * @return this builder
         */
        public Builder optJvmArgs(List<String> jvmArgs) {
            this.jvmArgs = List.copyOf(jvmArgs);
            return this;
        }

        /**
         * Sets the time that a rank has between SIGTERM and SIGKILL.
         *
         * @param gracePeriod the time; 15 seconds by default
         * @return this builder
         */
        public Builder optGracePeriod(Duration gracePeriod) {
            this.gracePeriod = Objects.requireNonNull(gracePeriod, "gracePeriod");
            return this;
        }

        /**
         * Redirects the ranks' stdout and stderr; to the caller's own by default. The launcher
         * writes its messages to {@code err}.
         *
         * @param out gets the ranks' stdout
         * @param err gets their stderr
         * @return this builder
         */
        public Builder optOutput(PrintStream out, PrintStream err) {
            this.out = Objects.requireNonNull(out, "out");
            this.err = Objects.requireNonNull(err, "err");
            return this;
        }

        /**
         * Builds the launcher.
         *
         * @return the launcher
         * @throws IllegalArgumentException if an option is missing or out of range, if the main
         *     class does not exist or has no main method, or if the environment has a variable that
         *     the launcher sets
         */
        public Launcher build() {
            refuseIf(
                    processes < 1,
                    "The number of processes must be at least 1, not %s".formatted(processes));
            refuseIf(
                    masterPort < 0 || masterPort > 65535,
                    "The master port must be between 0 and 65535, not %s".formatted(masterPort));
            refuseIf(
                    maxRestarts < 0,
                    "the number of restarts must be 0 or more, not %s".formatted(maxRestarts));
            checkNodes();
            checkMainClass();
            return new Launcher(this);
        }

        private void checkNodes() {
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
            refuseIf(
                    maxNodes > 1 && (masterAddress == null || masterPort == 0),
                    "With several nodes, the master address and the master port must be given, the"
                            + " same on all: an address of one node, and a free port there");
        }

        /** Checks the main class once here; otherwise every rank would fail. */
        private void checkMainClass() {
            refuseIf(mainClass == null, "no main class is set");
            try {
                Class<?> type = Class.forName(mainClass, false, Launcher.class.getClassLoader());
                refuseIf(
                        !Modifier.isStatic(type.getMethod("main", String[].class).getModifiers()),
                        "%s.main is not static".formatted(mainClass));
            } catch (ClassNotFoundException | LinkageError e) {
                throw new IllegalArgumentException(
                        "No class "
                                + mainClass
                                + " on the class path; name its jar with -cp, or in the environment"
                                + " variable CLASSPATH with samples/run.sh",
                        e);
            } catch (NoSuchMethodException e) {
                throw new IllegalArgumentException(
                        mainClass + " has no public method main(String[])", e);
            }
        }
    }
}
