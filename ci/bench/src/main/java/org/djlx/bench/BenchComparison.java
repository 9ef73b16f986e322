// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Compares the medians of several programs over several rounds. */
final class BenchComparison {

    private final Map<String, Map<Long, List<BenchRow>>> rounds = new LinkedHashMap<>();

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
}
