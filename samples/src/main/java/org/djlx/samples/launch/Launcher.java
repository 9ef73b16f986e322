/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.launch;

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
import org.djlx.collectives.TcpStore;
import org.djlx.samples.launch.RankProcesses.Outcome;

/**
 * Runs a main class in several JVMs of this host, one for each rank, with the environment that
 * torchrun gives its workers.
 *
 * <p>The JVMs run the same java executable on the same class path as the caller. Each line that a
 * rank writes is passed on, prefixed with {@code [rank] }; a carriage return ends a line too, and
 * one longer than 64 KiB comes in pieces. When a rank exits with a code other than 0, the others
 * are stopped: SIGTERM, and SIGKILL once the grace period is over. The same happens when the
 * calling JVM shuts down. If it is killed, the ranks notice and exit on their own (see {@link
 * RankMain}). Each rank runs in a session of its own, by {@code setsid} of util-linux; what it has
 * started and left there is killed when the ranks are gone. So no process is left in any case, but
 * for those that took a session of their own.
 *
 * <pre>{@code
 * int exitCode = Launcher.builder().setProcesses(4).setMainClass("com.example.Train").build().launch();
 * }</pre>
 *
 * <p>With {@linkplain Builder#optMaxRestarts restarts}, all ranks are then started again, with a
 * store of their own and {@code TORCHELASTIC_RESTART_COUNT} one higher, so that they meet nothing
 * of what the ranks before have left there; a job goes on from what it has saved itself.
 *
 * <p>A launcher is immutable; each call of {@link #launch} is a job of its own.
 */
public final class Launcher {

    /** The address at which the ranks of one host meet. */
    public static final String DEFAULT_MASTER_ADDRESS = "127.0.0.1";

    private static final String OMP_NUM_THREADS = "OMP_NUM_THREADS";
    private static final String HOME = "djlx.home";

    private final int processes;
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
        masterAddress = builder.masterAddress;
        masterPort = builder.masterPort;
        maxRestarts = builder.maxRestarts;
        environment = builder.environment;
        command = command(builder);
        gracePeriod = builder.gracePeriod;
        out = builder.out;
        err = builder.err;
        for (String name : rankEnvironment(0, 0, 0).keySet()) {
            if (environment.containsKey(name)) {
                throw new IllegalArgumentException(
                        "The variable " + name + " cannot be given: the launcher sets it itself");
            }
        }
    }

    /**
     * Returns a builder of launchers.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Starts the ranks and waits until all have exited; again, if a rank has failed and there are
     * restarts left.
     *
     * @return 0 if every rank returned 0, otherwise the exit code of the rank that failed first
     *     since the last restart; 128 plus the signal's number if a signal ended it. 141, that of
     *     SIGPIPE, if what ranks write to stdout can no longer be passed on; the ranks have been
     *     stopped then, and are not started again
     * @throws IOException if a process cannot be started, or there is no {@code setsid}
     * @throws InterruptedException if the thread is interrupted; the ranks have been stopped then
     */
    public int launch() throws IOException, InterruptedException {
        Outcome outcome = attempt(0);
        for (int restart = 1; restart <= maxRestarts && outcome.rankFailed(); restart++) {
            RankProcesses.say(
                    err, "starting all ranks again, restart " + restart + " of " + maxRestarts);
            outcome = attempt(restart);
        }
        return outcome.code();
    }

    private Outcome attempt(int restart) throws IOException, InterruptedException {
        // The launcher serves the store, as torchrun does: no port is chosen before it is bound.
        try (TcpStore store =
                        TcpStore.builder()
                                .setHost(masterAddress)
                                .setPort(masterPort)
                                .optServer(true)
                                .optBindAddress(masterAddress)
                                .build();
                RankProcesses ranks = new RankProcesses(gracePeriod, out, err)) {
            for (int rank = 0; rank < processes; rank++) {
                ProcessBuilder process = new ProcessBuilder(command);
                process.environment().putAll(environment);
                process.environment().putIfAbsent(OMP_NUM_THREADS, ompThreads());
                process.environment().putAll(rankEnvironment(rank, store.port(), restart));
                ranks.start(process);
            }
            return ranks.await();
        }
    }

    private static List<String> command(Builder builder) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        String home = System.getProperty(HOME);
        if (home != null) {
            // By it samples find the files that are their defaults.
            command.add("-D" + HOME + "=" + home);
        }
        command.addAll(builder.jvmArgs);
        command.add("-cp");
        command.add(System.getProperty("java.class.path"));
        command.add(RankMain.class.getName());
        command.add(builder.mainClass);
        command.addAll(builder.args);
        return List.copyOf(Sessions.command(command));
    }

    /** What torchrun sets for a job on one host. */
    private Map<String, String> rankEnvironment(int rank, int port, int restart) {
        Map<String, String> variables = new LinkedHashMap<>();
        String worldSize = Integer.toString(processes);
        for (String name : List.of("RANK", "LOCAL_RANK", "ROLE_RANK")) {
            variables.put(name, Integer.toString(rank));
        }
        for (String name : List.of("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")) {
            variables.put(name, worldSize);
        }
        variables.put("GROUP_RANK", "0");
        variables.put("GROUP_WORLD_SIZE", "1");
        variables.put("ROLE_NAME", "default");
        variables.put("MASTER_ADDR", masterAddress);
        variables.put("MASTER_PORT", Integer.toString(port));
        variables.put("TORCHELASTIC_RESTART_COUNT", Integer.toString(restart));
        variables.put("TORCHELASTIC_MAX_RESTARTS", Integer.toString(maxRestarts));
        variables.put("TORCHELASTIC_RUN_ID", "none");
        variables.put("TORCHELASTIC_USE_AGENT_STORE", "True");
        return variables;
    }

    /** Each rank's share of the cores: by default every rank would take them all. */
    private String ompThreads() {
        return Integer.toString(
                Math.max(1, Runtime.getRuntime().availableProcessors() / processes));
    }

    /** Collects the options of a {@link Launcher}. */
    public static final class Builder {

        private int processes;
        private String mainClass;
        private List<String> args = List.of();
        private String masterAddress = DEFAULT_MASTER_ADDRESS;
        private int masterPort;
        private int maxRestarts;
        private Map<String, String> environment = Map.of();
        private List<String> jvmArgs = List.of();
        private Duration gracePeriod = Duration.ofSeconds(10);
        private PrintStream out = System.out;
        private PrintStream err = System.err;

        private Builder() {}

        /**
         * Sets the number of processes, which is the world size. Required.
         *
         * @param processes the number of processes, at least 1
         * @return this builder
         */
        public Builder setProcesses(int processes) {
            this.processes = processes;
            return this;
        }

        /**
         * Sets the class whose main method each rank runs. Required.
         *
         * @param mainClass the fully qualified name of a class on the caller's class path
         * @return this builder
         */
        public Builder setMainClass(String mainClass) {
            this.mainClass = mainClass;
            return this;
        }

        /**
         * Sets the arguments of the main method; none by default.
         *
         * @param args the arguments
         * @return this builder
         */
        public Builder optArgs(List<String> args) {
            this.args = List.copyOf(args);
            return this;
        }

        /**
         * Sets MASTER_ADDR, the address of the job's store; {@value #DEFAULT_MASTER_ADDRESS} by
         * default.
         *
         * @param masterAddress an address of this host
         * @return this builder
         */
        public Builder optMasterAddress(String masterAddress) {
            this.masterAddress = Objects.requireNonNull(masterAddress, "masterAddress");
            return this;
        }

        /**
         * Sets MASTER_PORT, the port of the job's store; by default, and for 0, a free one.
         *
         * @param masterPort the port
         * @return this builder
         */
        public Builder optMasterPort(int masterPort) {
            this.masterPort = masterPort;
            return this;
        }

        /**
         * Sets how often all ranks are started again when one has failed; 0 by default.
         *
         * @param maxRestarts the number of restarts, not negative
         * @return this builder
         */
        public Builder optMaxRestarts(int maxRestarts) {
            this.maxRestarts = maxRestarts;
            return this;
        }

        /**
         * Sets environment variables of the ranks, beside those that they inherit; not those that
         * the launcher itself sets (RANK and the like).
         *
         * @param environment the variables
         * @return this builder
         */
        public Builder optEnvironment(Map<String, String> environment) {
            this.environment = Map.copyOf(environment);
            return this;
        }

        /**
         * Sets JVM options of the ranks; none by default.
         *
         * @param jvmArgs the options
         * @return this builder
         */
        public Builder optJvmArgs(List<String> jvmArgs) {
            this.jvmArgs = List.copyOf(jvmArgs);
            return this;
        }

        /**
         * Sets how long a rank has between SIGTERM and SIGKILL; 10 seconds by default.
         *
         * @param gracePeriod the time
         * @return this builder
         */
        public Builder optGracePeriod(Duration gracePeriod) {
            this.gracePeriod = Objects.requireNonNull(gracePeriod, "gracePeriod");
            return this;
        }

        /**
         * Sets where the ranks' output goes; by default to the caller's own stdout and stderr.
         *
         * @param out for what ranks write to stdout
         * @param err for what ranks write to stderr, and the launcher's own messages
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
            if (processes < 1) {
                throw new IllegalArgumentException(
                        "The number of processes must be at least 1, not " + processes);
            }
            if (masterPort < 0 || masterPort > 65535) {
                throw new IllegalArgumentException(
                        "The master port must be between 0 and 65535, not " + masterPort);
            }
            if (maxRestarts < 0) {
                throw new IllegalArgumentException(
                        "The number of restarts must not be negative: " + maxRestarts);
            }
            checkMainClass();
            return new Launcher(this);
        }

        /** Finds here, once, what would otherwise fail in every rank. */
        private void checkMainClass() {
            if (mainClass == null) {
                throw new IllegalArgumentException("No main class given");
            }
            try {
                Class<?> type = Class.forName(mainClass, false, Launcher.class.getClassLoader());
                if (!Modifier.isStatic(type.getMethod("main", String[].class).getModifiers())) {
                    throw new IllegalArgumentException(mainClass + ".main is not static");
                }
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
