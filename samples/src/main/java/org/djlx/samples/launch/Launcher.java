// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.launch;

import static org.djlx.samples.common.UsageException.refuseIf;

import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Modifier;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.djlx.collectives.TorchThreads;
import org.djlx.collectives.store.TcpStore;
import org.djlx.samples.launch.RankProcesses.Outcome;
import picocli.CommandLine.Model.CommandSpec;

/**
 * Runs a main class in several JVMs of this host, one for each rank, with the environment variables
 * of torchrun. A job may have {@linkplain Builder#optNodes several launchers}.
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
 * a new store and {@code TORCHELASTIC_RESTART_COUNT} one higher. The job itself must save and
 * restore its state.
 *
 * <p>A launcher is immutable; each call of {@link #launch} is a separate job.
 */
public final class Launcher {

    /** The default MASTER_ADDR, for ranks on one node. */
    public static final String DEFAULT_MASTER_ADDRESS = "127.0.0.1";

    private static final String OMP_NUM_THREADS = "OMP_NUM_THREADS";
    private static final String HOME = "djlx.home";

    private final int processes;
    private final int nodes;
    private final int nodeRank;
    private final String masterAddress;
    private final int masterPort;
    private final int maxRestarts;
    private final Map<String, String> environment;
    private final List<String> command;
    private final Duration gracePeriod;
    private final PrintStream out;
    private final PrintStream err;

    private Launcher(Builder builder) {
        processes = builder.processes;
        nodes = builder.nodes;
        nodeRank = builder.nodeRank;
        masterAddress =
                builder.masterAddress == null ? DEFAULT_MASTER_ADDRESS : builder.masterAddress;
        masterPort = builder.masterPort;
        maxRestarts = builder.maxRestarts;
        environment = builder.environment;
        command = command(builder);
        gracePeriod = builder.gracePeriod;
        out = builder.out;
        err = builder.err;
        for (String name : rankEnvironment(0, 0, 0).keySet()) {
            refuseIf(
                    environment.containsKey(name),
                    "--env %s is not allowed: the launcher sets this variable".formatted(name));
        }
    }

    /** Returns a builder of launchers. */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Runs a command again, without its option {@code --processes}, in one process for each rank,
     * and waits until all have exited.
     *
     * @return the exit code of {@link #launch}
     * @throws InterruptedException if the thread is interrupted; the ranks have been stopped then
     */
    public static int launchRanksOf(CommandSpec command, int processes)
            throws IOException, InterruptedException {
        CommandSpec root = command.root();
        List<String> args =
                root.commandLine().getParseResult().originalArgs().stream()
                        .filter(arg -> !arg.equals("--processes"))
                        .toList();
        return builder()
                .setProcesses(processes)
                .setMainClass(root.userObject().getClass().getName())
                .optArgs(args)
                .build()
                .launch();
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
        if (nodes > 1) {
            return launchNode();
        }
        Outcome outcome = attempt(0);
        for (int restart = 1; restart <= maxRestarts && outcome.rankFailed(); restart++) {
            RankProcesses.say(
                    err, "starting all ranks again, restart " + restart + " of " + maxRestarts);
            outcome = attempt(restart);
        }
        return outcome.code();
    }

    private Outcome attempt(int restart) throws IOException, InterruptedException {
        try (TcpStore store = store();
                RankProcesses ranks = new RankProcesses(0, gracePeriod, out, err)) {
            start(ranks, store.port(), restart);
            return ranks.await();
        }
    }

    /**
     * Runs this node's ranks of a job on several nodes, and sends the outcome to the other
     * launchers.
     */
    private int launchNode() throws IOException, InterruptedException {
        try (TcpStore store = store();
                RankProcesses ranks =
                        new RankProcesses(nodeRank * processes, gracePeriod, out, err);
                Nodes others =
                        new Nodes(
                                store,
                                nodes,
                                nodeRank,
                                processes,
                                err,
                                code -> ranks.giveUp("another node has failed", code))) {
            start(ranks, store.port(), 0);
            int code = ranks.await().code();
            if (code == 0) {
                return others.awaitOthers();
            }
            others.fail(code);
            return code;
        }
    }

    /** Serves the store, as torchrun does. A free port is bound as soon as it is chosen. */
    private TcpStore store() {
        return TcpStore.builder()
                .setHost(masterAddress)
                .setPort(masterPort)
                .optServer(nodeRank == 0)
                .optBindAddress(masterAddress)
                .build();
    }

    private void start(RankProcesses ranks, int port, int restart) throws IOException {
        for (int rank = 0; rank < processes; rank++) {
            ProcessBuilder process = new ProcessBuilder(command);
            process.environment().putAll(environment);
            process.environment().putIfAbsent(OMP_NUM_THREADS, ompThreads());
            process.environment().putAll(rankEnvironment(rank, port, restart));
            ranks.start(process);
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
    private Map<String, String> rankEnvironment(int localRank, int port, int restart) {
        Map<String, String> variables = new LinkedHashMap<>();
        variables.put("LOCAL_RANK", Integer.toString(localRank));
        variables.put("LOCAL_WORLD_SIZE", Integer.toString(processes));
        for (String name : List.of("RANK", "ROLE_RANK")) {
            variables.put(name, Integer.toString(nodeRank * processes + localRank));
        }
        for (String name : List.of("WORLD_SIZE", "ROLE_WORLD_SIZE")) {
            variables.put(name, Integer.toString(nodes * processes));
        }
        variables.put("GROUP_RANK", Integer.toString(nodeRank));
        variables.put("GROUP_WORLD_SIZE", Integer.toString(nodes));
        variables.put("ROLE_NAME", "default");
        variables.put("MASTER_ADDR", masterAddress);
        variables.put("MASTER_PORT", Integer.toString(port));
        variables.put("TORCHELASTIC_RESTART_COUNT", Integer.toString(restart));
        variables.put("TORCHELASTIC_MAX_RESTARTS", Integer.toString(maxRestarts));
        variables.put("TORCHELASTIC_RUN_ID", "none");
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
        private int nodes = 1;
        private int nodeRank;
        private String masterAddress;
        private int masterPort;
        private int maxRestarts;
        private Map<String, String> environment = Map.of();
        private List<String> jvmArgs = List.of();
        private Duration gracePeriod = Duration.ofSeconds(15);
        private PrintStream out = System.out;
        private PrintStream err = System.err;

        private Builder() {}

        /** Sets the number of processes, which is the world size on one node. Required. */
        public Builder setProcesses(int processes) {
            this.processes = processes;
            return this;
        }

        /** Sets the class, by its full name, whose main method each rank runs. Required. */
        public Builder setMainClass(String mainClass) {
            this.mainClass = mainClass;
            return this;
        }

        /** Sets the arguments of the main method; none by default. */
        public Builder optArgs(List<String> args) {
            this.args = List.copyOf(args);
            return this;
        }

        /**
         * Sets the number of launchers of the job, usually one per host, and the index of this
         * launcher; 1 and 0 by default. All launchers must have the same number of processes,
         * master address and port. Ranks are numbered node by node. Node 0 serves the store. If a
         * rank of one node fails, or its launcher is stopped, the other launchers stop their ranks
         * and return the same code.
         */
        public Builder optNodes(int nodes, int nodeRank) {
            this.nodes = nodes;
            this.nodeRank = nodeRank;
            return this;
        }

        /**
         * Sets MASTER_ADDR, the address of the job's store on node 0; {@value
         * #DEFAULT_MASTER_ADDRESS} by default and for null. Required with several nodes.
         */
        public Builder optMasterAddress(String masterAddress) {
            this.masterAddress = masterAddress;
            return this;
        }

        /** Sets MASTER_PORT; 0, a free one, by default. Required with several nodes. */
        public Builder optMasterPort(int masterPort) {
            this.masterPort = masterPort;
            return this;
        }

        /**
         * Sets the number of restarts of all ranks after one has failed; 0 by default. Not
         * supported with several nodes: their launchers do not restart together.
         */
        public Builder optMaxRestarts(int maxRestarts) {
            this.maxRestarts = maxRestarts;
            return this;
        }

        /**
         * Sets environment variables of the ranks, in addition to the inherited ones. Variables
         * that the launcher sets, such as RANK, are not allowed.
         */
        public Builder optEnvironment(Map<String, String> environment) {
            this.environment = Map.copyOf(environment);
            return this;
        }

        /** Sets JVM options of the ranks; none by default. */
        public Builder optJvmArgs(List<String> jvmArgs) {
            this.jvmArgs = List.copyOf(jvmArgs);
            return this;
        }

        /** Sets the time that a rank has between SIGTERM and SIGKILL; 15 seconds by default. */
        public Builder optGracePeriod(Duration gracePeriod) {
            this.gracePeriod = Objects.requireNonNull(gracePeriod, "gracePeriod");
            return this;
        }

        /**
         * Redirects the ranks' stdout and stderr; to the caller's own by default. The launcher
         * writes its messages to {@code err}.
         */
        public Builder optOutput(PrintStream out, PrintStream err) {
            this.out = Objects.requireNonNull(out, "out");
            this.err = Objects.requireNonNull(err, "err");
            return this;
        }

        /**
         * Builds the launcher.
         *
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
            refuseIf(nodes < 1, "The number of nodes must be at least 1, not %s".formatted(nodes));
            refuseIf(
                    nodeRank < 0 || nodeRank >= nodes,
                    "The node rank must be between 0 and %d with %d node(s), not %d"
                            .formatted(nodes - 1, nodes, nodeRank));
            refuseIf(
                    (long) nodes * processes > Integer.MAX_VALUE,
                    "%s nodes of %s processes are too many".formatted(nodes, processes));
            refuseIf(
                    nodes > 1 && (masterAddress == null || masterPort == 0),
                    "With several nodes, the master address and the master port must be given, the"
                            + " same on all: an address of node 0, and a free port there");
            refuseIf(
                    nodes > 1 && maxRestarts > 0,
                    "Restarts need one node: the launchers of several do not start their ranks"
                            + " again together. Start the whole job again instead");
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
                                + " on the class path; with samples/run.sh, name your jar in the"
                                + " environment variable CLASSPATH",
                        e);
            } catch (NoSuchMethodException e) {
                throw new IllegalArgumentException(
                        mainClass + " has no public method main(String[])", e);
            }
        }
    }
}
