/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import com.sun.management.OperatingSystemMXBean;
import java.io.PrintWriter;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Callable;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.host.ThreadBinding;
import org.djlx.samples.common.ElementType;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
import org.djlx.samples.launch.Launcher;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** {@code bench}: measures a collective and prints nccl-tests' table. */
@Command(
        name = "bench",
        description = {
            "Measures a collective on the CPU and prints nccl-tests' table: the median time of the"
                    + " slowest rank, and the Java heap that a call allocates.",
            "Ranks are threads, or processes; in a process started by 'launch' or torchrun, bench"
                    + " runs that process's rank."
        })
public final class BenchCommand implements Callable<Integer> {

    @Spec private CommandSpec spec;

    @Option(
            names = "--op",
            defaultValue = "all_reduce",
            description = "One of ${COMPLETION-CANDIDATES}; ${DEFAULT-VALUE} if not given.")
    private BenchOp op;

    @Mixin
    private final RankOptions options =
            new RankOptions().ranks(2).processes().types(ElementType.float32);

    @Option(names = "--bind", description = "Binds each rank's thread to a core, as mpirun does.")
    private boolean bind;

    @Option(
            names = "--idle",
            paramLabel = "SECONDS",
            description =
                    "Measures the CPU time of a rank's process that waits in a barrier for this"
                            + " long, instead of an operation.")
    private Integer idle;

    @Parameters(
            paramLabel = "SIZE[:WARMUP:ITERATIONS]",
            description = "Sizes in bytes, such as 4K or 64M; 4K to 64M if not given.")
    private List<String> sizes = List.of();

    private BenchCommand() {}

    @Override
    public Integer call() throws Exception {
        options.check();
        if (idle != null && idle < 0) {
            throw new ParameterException(
                    spec.commandLine(), "--idle must not be negative: " + idle);
        }
        if (options.inProcesses()) {
            cases(options.count());
            return Launcher.launchRanksOf(spec, options.count());
        }
        Ranks here = options.here();
        List<BenchCase> cases = cases(here.worldSize());
        return here.run("shm", group -> run(group, cases)).get(0);
    }

    private List<BenchCase> cases(int worldSize) {
        long least = (long) op.parts(worldSize) * options.type().scalarType().itemSize();
        return cases(spec, sizes, least, (op.inPlace() ? 1 : 2) * worldSize);
    }

    /**
     * Parses sizes.
     *
     * @param least the smallest size
     * @param tensors the number of tensors of a size at the same time, which must fit into memory
     */
    static List<BenchCase> cases(CommandSpec spec, List<String> words, long least, int tensors) {
        try {
            List<BenchCase> cases =
                    words.isEmpty()
                            ? BenchCase.DEFAULTS
                            : words.stream().map(BenchCase::parse).toList();
            for (BenchCase wanted : cases) {
                if (wanted.size() < least) {
                    throw new IllegalArgumentException(
                            "a size of "
                                    + wanted.size()
                                    + " bytes is too small; the smallest is "
                                    + least);
                }
                // Without memory the kernel kills processes, and not always this one.
                if (wanted.size() > memory() / tensors) {
                    throw new IllegalArgumentException(
                            "a size of "
                                    + wanted.size()
                                    + " bytes is too large: "
                                    + tensors
                                    + " tensors of it are more than this host's memory, "
                                    + memory()
                                    + " bytes");
                }
            }
            return cases;
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), e.getMessage(), e);
        }
    }

    private static long memory() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getTotalMemorySize();
    }

    /** Runs one rank; rank 0 reports. */
    private int run(ProcessGroup group, List<BenchCase> cases) throws InterruptedException {
        PrintWriter out = spec.commandLine().getOut();
        boolean reports = group.rank() == 0;
        if (bind) {
            ThreadBinding.bindToCore(group.rank());
        }
        try (BenchJob job = new BenchJob(group, op, options.type().scalarType())) {
            if (idle != null) {
                double millis = job.idle(Duration.ofSeconds(idle));
                if (reports) {
                    out.printf("idle: %.0f ms of CPU time in %d s%n", millis, idle);
                    out.flush();
                }
                return 0;
            }
            if (reports) {
                out.printf("# %s, %s%n%s%n", op, Ranks.count(group.worldSize()), BenchRow.HEADER);
            }
            long wrong = 0;
            for (BenchCase wanted : cases) {
                BenchRow row = job.measure(wanted);
                wrong += row.wrong();
                if (reports) {
                    out.println(row);
                    out.flush();
                }
            }
            return wrong == 0 ? 0 : 1;
        }
    }
}
