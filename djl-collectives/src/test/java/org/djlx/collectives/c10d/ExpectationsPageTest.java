// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;

/**
 * The tables of docs/c10d-tests.md are those of the expectations. Run this class as a program in
 * djl-collectives to write them.
 */
class ExpectationsPageTest {

    private static final Path PAGE = Path.of("../docs/c10d-tests.md");
    private static final String BEGIN = "<!-- ExpectationsPageTest -->\n";

    public static void main(String[] args) throws IOException {
        Files.writeString(PAGE, expected());
    }

    @Test
    void tablesAreThoseOfTheExpectations() throws IOException {
        assertEquals(expected(), Files.readString(PAGE));
    }

    @Test
    void noExpectationIsListedTwice() {
        Set<String> texts = new HashSet<>();
        for (Expectation<?> row : rows()) {
            assertTrue(texts.add(row.test() + ": " + row.says()), row::toString);
        }
        assertTrue(texts.size() >= 250, texts.size() + " expectations");
    }

    private static List<Expectation<?>> rows() {
        List<Expectation<?>> rows = new ArrayList<>(GroupExpectations.rows());
        rows.addAll(StoreExpectationsTest.rows());
        return rows;
    }

    private static String expected() throws IOException {
        String page = Files.readString(PAGE);
        return page.substring(0, page.indexOf(BEGIN)) + BEGIN + counts() + differences();
    }

    private static String counts() {
        Map<String, int[]> counts = new TreeMap<>();
        int[] all = counts.computeIfAbsent("together", file -> new int[2]);
        for (Expectation<?> row : rows()) {
            String file = row.test().substring(0, row.test().indexOf(' '));
            int kind = row.difference().isPresent() ? 1 : 0;
            counts.computeIfAbsent("`" + file + "`", name -> new int[2])[kind]++;
            all[kind]++;
        }
        StringBuilder table = new StringBuilder("\n| PyTorch's tests | agree | differ |\n");
        table.append("|---|---:|---:|\n");
        counts.forEach(
                (file, count) ->
                        table.append("| %s | %d | %d |%n".formatted(file, count[0], count[1])));
        return table.toString();
    }

    private static String differences() {
        StringBuilder table = new StringBuilder("\n## Differences\n\n");
        table.append("| PyTorch's test | there | here | why |\n|---|---|---|---|\n");
        for (Expectation<?> row : rows()) {
            String test = row.test().substring(row.test().indexOf(' ') + 1);
            row.difference()
                    .ifPresent(
                            difference ->
                                    table.append(
                                            "| `%s` | %s | %s | %s |%n"
                                                    .formatted(
                                                            test,
                                                            row.says(),
                                                            difference.here(),
                                                            difference.why())));
        }
        return table.toString();
    }
}
