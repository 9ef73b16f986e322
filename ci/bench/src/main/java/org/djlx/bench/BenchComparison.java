// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.djlx.samples.common.TextTable;

/** Compares the medians of several programs over several rounds. */
final class BenchComparison {

    /**
     * The time of a program relative to a peer.
     *
     * @param peer the peer
     * @param size the size in bytes
     * @param ratio the program's time divided by the peer's
     * @param allowed the largest ratio that meets the target
     */
    record Ratio(String peer, long size, double ratio, double allowed) {}

    /**
     * The targets, for float32 all-reduce between processes on two cores. Their field {@code ratio}
     * is unused.
     */
    private static final List<Ratio> TARGETS =
            List.of(
                    new Ratio("gloo", 4 << 10, 0, 1 / 20.0),
                    new Ratio("gloo", 64 << 10, 0, 1 / 8.0),
                    new Ratio("gloo", 1 << 20, 0, 1 / 2.0),
                    new Ratio("gloo", 64 << 20, 0, 0.8),
                    new Ratio("openmpi", 4 << 10, 0, 3),
                    new Ratio("openmpi", 1 << 20, 0, 1.2),
                    new Ratio("openmpi", 4 << 20, 0, 1.2),
                    new Ratio("openmpi", 16 << 20, 0, 1.2),
                    new Ratio("openmpi", 64 << 20, 0, 1.2));

    /** The name of backend mpi as a peer. */
    static final String MPI = "mpi";

    private final Map<String, Map<Long, List<BenchRow>>> rounds = new LinkedHashMap<>();

    /**
     * Returns the targets of backend mpi: 1.15 times as long as MPI from C from 64 KiB on, 3 µs
     * more below.
     */
    private List<Ratio> mpiTargets() {
        List<Ratio> targets = new ArrayList<>();
        for (long size : rounds.getOrDefault(MPI, Map.of()).keySet()) {
            double small = 1 + 3 / micros("openmpi", size).orElse(Double.NaN);
            targets.add(new Ratio("openmpi", size, 0, size < 64 << 10 ? small : 1.15));
        }
        return targets;
    }

    /** Adds the rows of one round of a program. */
    void add(String program, List<BenchRow> rows) {
        Map<Long, List<BenchRow>> bySize = rounds.computeIfAbsent(program, name -> new TreeMap<>());
        rows.forEach(row -> bySize.computeIfAbsent(row.size(), s -> new ArrayList<>()).add(row));
    }

    /** Returns, for each program and size, the round with the median time. */
    Map<String, List<BenchRow>> medians() {
        Map<String, List<BenchRow>> medians = new LinkedHashMap<>();
        rounds.forEach(
                (program, bySize) ->
                        medians.put(
                                program,
                                bySize.values().stream().map(BenchComparison::median).toList()));
        return medians;
    }

    private static BenchRow median(List<BenchRow> rows) {
        List<BenchRow> sorted =
                rows.stream().sorted(Comparator.comparingDouble(BenchRow::micros)).toList();
        return sorted.get(sorted.size() / 2);
    }

    /** Returns the median time in microseconds; empty if there is none. */
    Optional<Double> micros(String program, long size) {
        return Optional.ofNullable(rounds.get(program))
                .map(bySize -> bySize.get(size))
                .map(rows -> median(rows).micros());
    }

    /** Returns the ratios of a program to each measured target. */
    List<Ratio> ratios(String program) {
        List<Ratio> ratios = new ArrayList<>();
        for (Ratio target : program.equals(MPI) ? mpiTargets() : TARGETS) {
            Optional<Double> mine = micros(program, target.size);
            Optional<Double> peers = micros(target.peer, target.size);
            if (mine.isPresent() && peers.isPresent()) {
                double ratio = mine.get() / peers.get();
                ratios.add(new Ratio(target.peer, target.size, ratio, target.allowed));
            }
        }
        return ratios;
    }

    /** Returns a table in nccl-tests' format, with the program's name before each row. */
    @Override
    public String toString() {
        int width = rounds.keySet().stream().mapToInt(String::length).max().orElse(0);
        StringBuilder text = new StringBuilder();
        BenchRow.HEADER
                .lines()
                .forEach(line -> text.append(" ".repeat(width)).append(line).append('\n'));
        medians()
                .forEach(
                        (program, rows) -> {
                            String name = program + " ".repeat(width - program.length());
                            rows.forEach(row -> text.append(name).append(row).append('\n'));
                        });
        return text.toString();
    }

    /** Returns a table of the ratios of a program. */
    TextTable targets(String program) {
        TextTable table = new TextTable("size", "peer", "ratio", "at most", "");
        for (Ratio ratio : ratios(program)) {
            table.add(
                    ratio.size,
                    ratio.peer,
                    ReportCommand.number("%.3f", ratio.ratio),
                    ReportCommand.number("%.3f", ratio.allowed),
                    ratio.ratio <= ratio.allowed ? "met" : "missed");
        }
        return table;
    }
}
