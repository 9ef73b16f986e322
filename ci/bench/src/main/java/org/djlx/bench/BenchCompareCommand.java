/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.bench.BenchComparison.Ratio;
import org.djlx.samples.common.Ranks;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** {@code bench-compare}: compares the all-reduce of 2 ranks with other programs. */
@Command(
        name = "bench-compare",
        description = {
            "Measures the float32 all-reduce of 2 ranks, as threads and as processes, and of other"
                    + " programs in the same run; then more ranks than cores, and the CPU time of a"
                    + " waiting rank.",
            "The programs take turns; the median of the rounds counts."
        })
public final class BenchCompareCommand implements Callable<Integer> {

    private static final String THREADS = "threads";
    private static final String PROCESSES = "processes";
    private static final Pattern IDLE = Pattern.compile(".*idle: (\\d+) ms.*");

    @Spec private CommandSpec spec;

    @Option(
            names = "--peer",
            paramLabel = "NAME=COMMAND",
            description =
                    "A program to compare with: a shell command that takes SIZE:WARMUP:ITERATIONS"
                            + " arguments and prints nccl-tests' table. Known names with targets"
                            + " are gloo and openmpi.")
    private Map<String, String> peers = Map.of();

    @Option(
            names = "--version-of",
            paramLabel = "NAME=VERSION",
            description = "The version of a peer, for the report.")
    private Map<String, String> versions = Map.of();

    @Option(names = "--rounds", defaultValue = "3", description = "${DEFAULT-VALUE} if not given.")
    private int rounds;

    @Option(
            names = "--many",
            paramLabel = "N",
            defaultValue = "8",
            description = "A number of ranks above that of cores; ${DEFAULT-VALUE} if not given.")
    private int many;

    @Option(
            names = "--idle",
            paramLabel = "SECONDS",
            defaultValue = "5",
            description = "How long a rank waits; ${DEFAULT-VALUE} if not given.")
    private int idle;

    @Mixin private ReportOptions reports;

    @Parameters(
            paramLabel = "SIZE[:WARMUP:ITERATIONS]",
            description = "Sizes in bytes; 4K to 64M if not given.")
    private List<String> sizes = List.of();

    private BenchCompareCommand() {}

    @Override
    public Integer call() throws Exception {
        if (rounds < 1) {
            throw new ParameterException(
                    spec.commandLine(), "--rounds must be at least 1, not " + rounds);
        }
        Ranks.check(spec, "--many", many, false);
        if (idle < 0) {
            throw new ParameterException(
                    spec.commandLine(), "--idle must be 0 or more, not " + idle);
        }
        List<BenchCase> cases = BenchCommand.cases(spec, sizes, Float.BYTES, Math.max(2, many));
        PrintWriter out = spec.commandLine().getOut();
        BenchComparison comparison = compare(cases);
        out.printf("# all_reduce, 2 ranks, median of %d rounds%n%s%n", rounds, comparison);
        out.printf("%s to peers:%n%s%n", PROCESSES, comparison.targets(PROCESSES));

        Map<String, Double> slowdowns = new LinkedHashMap<>();
        Map<String, Integer> idleMillis = new LinkedHashMap<>();
        for (String ranks : List.of(THREADS, PROCESSES)) {
            for (BenchRow row : comparison.medians().get(many(ranks))) {
                double slowdown = row.micros() / comparison.micros(ranks, row.size()).orElseThrow();
                slowdowns.put(ranks + " " + row.size(), slowdown);
                out.printf(
                        "%s, %d bytes: %.1f times as long as 2%n",
                        many(ranks), row.size(), slowdown);
            }
            idleMillis.put(ranks, idleMillis(ranks));
            out.printf(
                    "%s: %d ms of CPU time while waiting for %d s%n",
                    ranks, idleMillis.get(ranks), idle);
            out.flush();
        }
        if (reports.json() != null) {
            store(comparison, slowdowns, idleMillis);
        }
        boolean correct =
                comparison.medians().values().stream()
                        .flatMap(List::stream)
                        .allMatch(row -> row.wrong() == 0);
        return correct ? 0 : 1;
    }

    private BenchComparison compare(List<BenchCase> cases)
            throws IOException, InterruptedException {
        List<BenchProgram> programs = new ArrayList<>();
        // Peers run first: a broken one then fails before minutes of measurements.
        peers.forEach(
                (name, command) ->
                        programs.add(
                                new BenchProgram(
                                        name, List.of("bash", "-c", command + " \"$@\"", name))));
        programs.add(program(THREADS, THREADS, 2, "--bind"));
        programs.add(program(PROCESSES, PROCESSES, 2, "--bind"));
        programs.add(program(many(THREADS), THREADS, many));
        programs.add(program(many(PROCESSES), PROCESSES, many));
        PrintWriter err = spec.commandLine().getErr();
        BenchComparison comparison = new BenchComparison();
        for (int round = 0; round < rounds; round++) {
            for (BenchProgram program : programs) {
                // A round takes minutes.
                err.printf("round %d of %d: %s%n", round + 1, rounds, program.name());
                err.flush();
                comparison.add(program.name(), program.measure(cases));
            }
        }
        return comparison;
    }

    private String many(String ranks) {
        return many + " " + ranks;
    }

    private static BenchProgram program(String name, String kind, int ranks, String... options) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.addAll(List.of(Main.class.getName(), "bench", "--ranks", "" + ranks));
        if (kind.equals(PROCESSES)) {
            command.add("--processes");
        }
        command.addAll(List.of(options));
        return new BenchProgram(name, command);
    }

    private int idleMillis(String kind) throws IOException, InterruptedException {
        for (String line : program(kind, kind, 2, "--idle", "" + idle).run(List.of())) {
            Matcher matcher = IDLE.matcher(line);
            if (matcher.matches()) {
                return Integer.parseInt(matcher.group(1));
            }
        }
        throw new IOException("no idle time was printed");
    }

    private void store(
            BenchComparison comparison,
            Map<String, Double> slowdowns,
            Map<String, Integer> idleMillis)
            throws IOException {
        BenchReport result = reports.report("float32 all_reduce, 2 ranks on one host", versions);
        result.put("rounds", rounds);
        result.put("medians", comparison.medians());
        List<Ratio> ratios = comparison.ratios(PROCESSES);
        result.put("processesToPeers", ratios);
        result.put("manyRanks", many);
        result.put("manyRanksSlowdown", slowdowns);
        result.put("idleSeconds", idle);
        result.put("idleCpuMillis", idleMillis);
        result.store(reports.json());
    }
}
