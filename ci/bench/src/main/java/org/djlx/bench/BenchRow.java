// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.Locale;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A row of nccl-tests' table, with the Java heap that a call allocates, -1 if not known. {@code
 * bench} and its peers print it; {@code bench-compare} reads it. {@code micros} is the median time
 * of a call on the slowest rank, {@code wrong} the number of wrong elements on all ranks.
 */
record BenchRow(
        long size,
        long count,
        String type,
        String redop,
        int root,
        double micros,
        double algbw,
        double busbw,
        long wrong,
        long heap) {

    static final String HEADER =
            """
            #       size         count      type   redop    root       time   algbw   busbw  #wrong    heap
            #        (B)    (elements)                                 (us)  (GB/s)  (GB/s)             (B)\
            """;

    // Programs in other languages print no heap.
    private static final Pattern ROW =
            Pattern.compile(
                    "(?:\\[\\d+]"
                            + " )?\\s*(\\d+)\\s+(\\d+)\\s+(\\w+)\\s+(\\w+)\\s+(-?\\d+)\\s+([\\d.]+)"
                            + "\\s+([\\d.]+)\\s+([\\d.]+)\\s+(\\d+)(?:\\s+(\\d+))?\\s*");

    /** Parses a row, with or without the launcher's prefix. */
    static Optional<BenchRow> parse(String line) {
        Matcher row = ROW.matcher(line);
        if (!row.matches()) {
            return Optional.empty();
        }
        return Optional.of(
                new BenchRow(
                        Long.parseLong(row.group(1)),
                        Long.parseLong(row.group(2)),
                        row.group(3),
                        row.group(4),
                        Integer.parseInt(row.group(5)),
                        Double.parseDouble(row.group(6)),
                        Double.parseDouble(row.group(7)),
                        Double.parseDouble(row.group(8)),
                        Long.parseLong(row.group(9)),
                        row.group(10) == null ? -1 : Long.parseLong(row.group(10))));
    }

    @Override
    public String toString() {
        return String.format(
                Locale.ROOT,
                "%12d  %12d  %8s  %6s  %6d  %9.2f  %6.2f  %6.2f  %6d  %6s",
                size,
                count,
                type,
                redop,
                root,
                micros,
                algbw,
                busbw,
                wrong,
                heap < 0 ? "" : heap);
    }
}
