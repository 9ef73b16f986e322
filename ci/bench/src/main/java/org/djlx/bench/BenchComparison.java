/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.djlx.samples.common.TextTable;

/** Compares the medians of several programs over several rounds. */
final class BenchComparison {

    static final String GLOO = "gloo";
    static final String OPEN_MPI = "openmpi";

    /**
     * The largest allowed time, relative to a peer's.
     *
     * @param peer the program to compare with
     * @param size the size in bytes
     * @param factor the allowed multiple of the peer's time
     */
    private record Target(String peer, long size, double factor) {}

    // For float32 all-reduce between processes on two cores.
    private static final List<Target> TARGETS =
            List.of(
                    new Target(GLOO, 4 << 10, 1 / 20.0),
                    new Target(GLOO, 64 << 10, 1 / 8.0),
                    new Target(GLOO, 1 << 20, 1 / 2.0),
                    new Target(GLOO, 64 << 20, 0.8),
                    new Target(OPEN_MPI, 4 << 10, 3),
                    new Target(OPEN_MPI, 1 << 20, 1.2),
                    new Target(OPEN_MPI, 4 << 20, 1.2),
                    new Target(OPEN_MPI, 16 << 20, 1.2),
                    new Target(OPEN_MPI, 64 << 20, 1.2));

    /**
     * The time of a program relative to a peer.
     *
     * @param peer the peer
     * @param size the size in bytes
     * @param ratio of the program's time to the peer's
     * @param allowed the largest ratio that meets the target
     */
    record Ratio(String peer, long size, double ratio, double allowed) {

        boolean met() {
            return ratio <= allowed;
        }
    }

    private final Map<String, Map<Long, List<BenchRow>>> rounds = new LinkedHashMap<>();

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
        for (Target target : TARGETS) {
            Optional<Double> mine = micros(program, target.size);
            Optional<Double> theirs = micros(target.peer, target.size);
            if (mine.isPresent() && theirs.isPresent()) {
                double ratio = mine.get() / theirs.get();
                ratios.add(new Ratio(target.peer, target.size, ratio, target.factor));
            }
        }
        return ratios;
    }

    /** Returns nccl-tests' table with the program's name before each row. */
    @Override
    public String toString() {
        int width = rounds.keySet().stream().mapToInt(String::length).max().orElse(0);
        StringBuilder text = new StringBuilder();
        BenchRow.HEADER
                .lines()
                .forEach(line -> text.append(" ".repeat(width)).append(line).append('\n'));
        medians()
                .forEach(
                        (program, rows) ->
                                rows.forEach(
                                        row ->
                                                text.append(program)
                                                        .append(
                                                                " "
                                                                        .repeat(
                                                                                width
                                                                                        - program
                                                                                                .length()))
                                                        .append(row)
                                                        .append('\n')));
        return text.toString();
    }

    /** Returns a table of the ratios of a program. */
    TextTable targets(String program) {
        TextTable table = new TextTable("size", "peer", "ratio", "at most", "");
        for (Ratio ratio : ratios(program)) {
            table.add(
                    ratio.size,
                    ratio.peer,
                    String.format(Locale.ROOT, "%.3f", ratio.ratio),
                    String.format(Locale.ROOT, "%.3f", ratio.allowed),
                    ratio.met() ? "met" : "missed");
        }
        return table;
    }
}
