// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code bench-compare}: compares the all-reduce of 2 ranks with other programs. */
@Command(
        name = "bench-compare",
        description = {
            "Measures the float32 all-reduce of 2 ranks, as threads and as processes, and of other"
                    + " programs in the same run.",
            "The programs take turns; reported is the median of the rounds."
        })
final class BenchCompareCommand extends ReportCommand {

    private static final String THREADS = "threads";
    private static final String PROCESSES = "processes";

    @Option(
            names = "--peer",
            paramLabel = "NAME=COMMAND",
            description =
                    "A program to compare with: a shell command that takes SIZE:WARMUP:ITERATIONS"
                            + " arguments and prints nccl-tests' table.")
    private Map<String, String> peers;

    @Option(
            names = "--version-of",
            paramLabel = "NAME=VERSION",
            description = "The version of a peer, for the report.")
    private Map<String, String> versions;

    @Option(names = "--rounds", description = "Turns of each program.")
    private int rounds = 3;

    @Parameters(
            paramLabel = "SIZE[:WARMUP:ITERATIONS]",
            description = "Sizes in bytes; 4K to 64M if not given.")
    private List<String> sizes;

    /** A program that takes cases as arguments and prints nccl-tests' table. */
    private record Program(String name, List<String> command) {

        List<String> run(List<String> args) throws IOException, InterruptedException {
            List<String> words = new ArrayList<>(command);
            words.addAll(args);
            Process process =
                    new ProcessBuilder(words)
                            .redirectError(ProcessBuilder.Redirect.INHERIT)
                            .start();
            Thread stop = new Thread(process::destroy, "stop-" + name);
            Runtime.getRuntime().addShutdownHook(stop);
            List<String> lines;
            try (BufferedReader output = process.inputReader(StandardCharsets.UTF_8)) {
                lines = output.lines().toList();
            }
            int code = process.waitFor();
            Runtime.getRuntime().removeShutdownHook(stop);
            if (code != 0) {
                String printed = lines.isEmpty() ? "" : ": " + String.join("\n", lines);
                throw new IOException(name + " ended with code " + code + printed);
            }
            return lines;
        }

        List<BenchRow> measure(List<BenchCase> cases) throws IOException, InterruptedException {
            List<String> lines = run(cases.stream().map(BenchCase::toString).toList());
            List<BenchRow> rows =
                    lines.stream().flatMap(line -> BenchRow.parse(line).stream()).toList();
            if (rows.size() != cases.size()) {
                throw new IOException(
                        String.format(
                                "%s printed %d rows instead of %d: %s",
                                name, rows.size(), cases.size(), String.join("\n", lines)));
            }
            return rows;
        }
    }

    @Override
    public Integer call() throws Exception {
        refuseIf(rounds < 1, "--rounds must be at least 1, not %d".formatted(rounds));
        List<BenchCase> cases = BenchCase.parse(sizes, Float.BYTES, 2);
        Map<String, List<BenchRow>> medians = new LinkedHashMap<>();
        measure(cases).forEach((program, rows) -> medians.put(program, medians(rows)));
        begin("float32 all_reduce, 2 ranks on one host", versions == null ? Map.of() : versions);
        put("rounds", rounds);
        put("medians", medians);
        store();
        print("all_reduce, 2 ranks, microseconds, median of %d rounds%n%n", rounds);
        printTables();
        return medians.values().stream().flatMap(List::stream).allMatch(row -> row.wrong() == 0)
                ? 0
                : 1;
    }

    private Map<String, List<List<BenchRow>>> measure(List<BenchCase> cases)
            throws IOException, InterruptedException {
        List<Program> programs = new ArrayList<>();
        // Peers run first: a broken peer then fails before minutes of measurements.
        if (peers != null) {
            peers.forEach(
                    (name, command) ->
                            programs.add(
                                    new Program(
                                            name,
                                            List.of("bash", "-c", command + " \"$@\"", name))));
        }
        programs.add(program(THREADS));
        programs.add(program(PROCESSES, "--processes"));
        Map<String, List<List<BenchRow>>> measured = new LinkedHashMap<>();
        for (int round = 1; round <= rounds; round++) {
            for (Program program : programs) {
                // A round takes minutes.
                progress("round %d of %d: %s", round, rounds, program.name());
                measured.computeIfAbsent(program.name(), name -> new ArrayList<>())
                        .add(program.measure(cases));
            }
        }
        return measured;
    }

    static List<BenchRow> medians(List<List<BenchRow>> rounds) {
        return IntStream.range(0, rounds.get(0).size())
                .mapToObj(
                        i ->
                                rounds.stream()
                                        .map(rows -> rows.get(i))
                                        .sorted(Comparator.comparingDouble(BenchRow::micros))
                                        .toList()
                                        .get(rounds.size() / 2))
                .toList();
    }

    private static Program program(String name, String... options) {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.addAll(List.of(Main.class.getName(), "bench", "--ranks", "2", "--bind"));
        command.addAll(List.of(options));
        return new Program(name, command);
    }
}
