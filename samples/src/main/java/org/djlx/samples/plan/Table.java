/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.plan;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.samples.common.TextTable;

/** A table, as text or for a page of documentation. */
final class Table {

    private final List<List<String>> rows = new ArrayList<>();

    Table(String... header) {
        rows.add(List.of(header));
    }

    void add(String... cells) {
        add(List.of(cells));
    }

    void add(List<String> cells) {
        rows.add(cells);
    }

    String text() {
        TextTable table = new TextTable(rows.get(0).toArray(String[]::new));
        rows.subList(1, rows.size()).forEach(row -> table.add(row.toArray()));
        return table.toString();
    }

    String markdown() {
        List<List<String>> lines = new ArrayList<>(rows);
        lines.add(1, Collections.nCopies(rows.get(0).size(), "---"));
        return lines.stream()
                .map(cells -> "| " + String.join(" | ", cells) + " |\n")
                .collect(Collectors.joining());
    }
}
