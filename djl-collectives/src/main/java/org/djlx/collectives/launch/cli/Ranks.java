// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.launch.Launch;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.launch.TorchThreads;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.NativeLibrary;
import picocli.CommandLine.Model.CommandSpec;

/**
 * The ranks that run in this process: one rank if a launcher started the process, otherwise all
 * ranks, each on a thread.
 */
public final class Ranks {

    /** Largest number of ranks that are threads of a process: each has its own copy of the data. */
    static final int MOST_THREADS = Math.max(64, Runtime.getRuntime().availableProcessors());

    private final boolean threads;
    private final int worldSize;
    private final int first;

    private Ranks(boolean threads, int worldSize, int first) {
        this.threads = threads;
        this.worldSize = worldSize;
        this.first = first;
    }

    /**
     * Checks the number of ranks that a user asks for, or null. Throws UsageException if it is out
     * of range, or this process is a rank and {@code processes} is true.
     */
    public static void check(String option, Integer requested, boolean processes) {
        check(option, requested, MOST_THREADS, processes);
    }

    static void check(String option, Integer requested, int most, boolean processes) {
        boolean isRank =
                LaunchEnvironment.current().get("RANK")
                        != null; // Then WORLD_SIZE is the only limit.
        refuseIf(
                requested != null && (requested < 1 || requested > most && !isRank),
                "%s must be from 1 to %d%s, not %d"
                        .formatted(
                                option,
                                most,
                                most == MOST_THREADS ? " on this host" : "",
                                requested));
        refuseIf(
                processes && isRank,
                "--processes starts a job, but this process is already a rank of a job: RANK is"
                        + " set. Leave --processes out");
    }

    /**
     * Runs a command again, without its option {@code --processes}, in one process for each rank,
     * and waits until all have exited. Returns the exit code of {@link Launch#run}.
     */
    public static int launch(CommandSpec command, int processes) {
        CommandSpec root = command.root();
        List<String> args = new ArrayList<>(List.of("--nproc-per-node", "" + processes));
        args.add(root.userObject().getClass().getName());
        root.commandLine().getParseResult().originalArgs().stream()
                .filter(arg -> !arg.equals("--processes"))
                .forEach(args::add);
        return Launch.run(System.out, System.err, args);
    }

    /** Returns a number of ranks as text, such as "2 ranks". */
    public static String count(int ranks) {
        return ranks + (ranks == 1 ? " rank" : " ranks");
    }

    /**
     * Returns the ranks of this process, and gives each its share of the cores ({@link
     * TorchThreads}). Throws UsageException if it belongs to a job of another size than the user
     * asked for, unless null.
     */
    public static Ranks of(Integer requested, int otherwise) {
        if (LaunchEnvironment.current().get("RANK") != null) {
            Ranks ranks = new Ranks(false, environment("WORLD_SIZE"), environment("RANK"));
            TorchThreads.choose(1);
            refuseIf(
                    requested != null && requested != ranks.worldSize,
                    "%d ranks are requested, but WORLD_SIZE of this process's job is %d"
                            .formatted(requested, ranks.worldSize));
            return ranks;
        }
        int worldSize = requested == null ? otherwise : requested;
        TorchThreads.choose(worldSize);
        return new Ranks(true, worldSize, 0);
    }

    private static int environment(String name) {
        String value = LaunchEnvironment.current().get(name);
        refuseIf(
                value == null || !value.matches("\\d{1,9}"),
                "the environment variable %s is not a number: %s".formatted(name, value));
        return Integer.parseInt(value);
    }

    /** Returns whether the ranks are processes; otherwise they are threads of this process. */
    public boolean areProcesses() {
        return !threads;
    }

    /** Returns the number of ranks of the job. */
    public int worldSize() {
        return worldSize;
    }

    /** Returns the ranks that this process runs, ascending. */
    public List<Integer> here() {
        return IntStream.range(first, first + (threads ? worldSize : 1)).boxed().toList();
    }

    /**
     * Checks for the GPUs and libraries that a backend needs for the ranks on this host, or in this
     * process; throws IllegalStateException. {@link #run} checks too. Commands that create files
     * call this first.
     */
    public static void requireGpus(String backend, int ranks) {
        if (backend.equals("nccl")) {
            Gpus.require(ranks, NativeLibrary.NCCL);
        } else if (backend.equals("cuda_p2p")) {
            Gpus.require(ranks, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        }
    }

    /**
     * Runs the ranks as one group, and returns the result of each, in the order of {@link #here}.
     * Throws IllegalStateException if the backend needs more GPUs than there are.
     */
    public <T> List<T> run(String backend, ProcessGroups.RankBody<T> body) throws Exception {
        requireGpus(backend, here().size());
        if (!threads) {
            try (ProcessGroup group = ProcessGroups.init(backend)) {
                return List.of(body.run(group));
            }
        }
        List<ProcessGroup> groups =
                ProcessGroups.local(backend, worldSize, BackendOptions.DEFAULTS);
        try {
            return ProcessGroups.run(groups, body);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
