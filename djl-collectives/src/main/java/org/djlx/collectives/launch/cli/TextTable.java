// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

/** A plain-text table: columns are two blanks apart, numeric ones right-aligned. */
public final class TextTable {

    private final String[] header;
    private final List<String[]> rows = new ArrayList<>();
    private final boolean[] numeric;

    /** Creates a table without rows. */
    public TextTable(String... header) {
        this.header = header.clone();
        numeric = new boolean[header.length];
        Arrays.fill(numeric, true);
    }

    /**
     * Adds a row of as many cells as columns. A column is numeric if each of its cells starts with
     * a number or is a dash.
     */
    public TextTable add(Object... cells) {
        if (cells.length != header.length) {
            throw new IllegalArgumentException(
                    cells.length + " cells in a table of " + header.length + " columns");
        }
        String[] row = new String[cells.length];
        for (int i = 0; i < row.length; i++) {
            row[i] = String.valueOf(cells[i]);
            numeric[i] &= row[i].matches("[-+]?\\.?\\d.*|-|");
        }
        rows.add(row);
        return this;
    }

    /** Returns the lines, without trailing blanks, each with a line feed. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder();
        appendLine(text, header);
        rows.forEach(row -> appendLine(text, row));
        return text.toString();
    }

    /** Returns the table in Markdown. */
    public String markdown() {
        return line(header)
                + "|---".repeat(header.length)
                + "|\n"
                + rows.stream().map(TextTable::line).collect(Collectors.joining());
    }

    private static String line(String... cells) {
        return Arrays.stream(cells).collect(Collectors.joining(" | ", "| ", " |\n"));
    }

    private void appendLine(StringBuilder text, String[] cells) {
        StringBuilder line = new StringBuilder();
        for (int i = 0; i < cells.length; i++) {
            String padding = " ".repeat(width(i) - cells[i].length());
            line.append(i == 0 ? "" : "  ");
            line.append(numeric[i] ? padding + cells[i] : cells[i] + padding);
        }
        text.append(line.toString().stripTrailing()).append('\n');
    }

    private int width(int column) {
        int width = header[column].length();
        for (String[] row : rows) {
            width = Math.max(width, row[column].length());
        }
        return width;
    }
}
