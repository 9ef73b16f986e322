// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.OptionalDouble;

/**
 * One measurement: a row of the resource {@code measurements.csv}, which describes its columns and
 * sources.
 *
 * @param machine the GPUs, by the name of their {@link Machine}
 * @param operator the method of a fused operator, or the name of another measurement
 * @param m the rows of the unsharded A; 0 if there is none
 * @param n the columns of the unsharded B; 0 if there is none
 * @param k the columns of the unsharded A; 0 if there is none
 * @param bytes the bytes into each GPU, for a push; otherwise 0
 * @param ranks the number of ranks; 0 if there are none
 * @param path the path of the operator; of another measurement, the measured part
 * @param tile the columns of a tile of the fused kernel; 0 if unknown
 * @param pushers the number of thread blocks of the fused kernel that pushed; 0 if no block pushed,
 *     or the tile is unknown
 * @param recorded whether a graph was replayed, or the host's time excluded
 * @param micros the time, in microseconds
 * @param host the time of the calling thread, in microseconds, if it was measured
 * @param source the source of the row
 */
public record Measurement(
        String machine,
        String type,
        String operator,
        long m,
        long n,
        long k,
        long bytes,
        int ranks,
        String path,
        int tile,
        int pushers,
        boolean recorded,
        double micros,
        OptionalDouble host,
        String source) {

    private static final String RESOURCE = "measurements.csv";
    private static final int COLUMNS = 15;

    /** {@return all rows, in the order of the resource} */
    public static List<Measurement> all() {
        try (BufferedReader reader =
                new BufferedReader(
                        new InputStreamReader(
                                Measurement.class.getResourceAsStream(RESOURCE),
                                StandardCharsets.UTF_8))) {
            // The first line after the comments names the columns.
            return reader.lines()
                    .filter(line -> !line.startsWith("#"))
                    .skip(1)
                    .map(Measurement::parse)
                    .toList();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static Measurement parse(String line) {
        String[] cells = line.split(",", -1);
        if (cells.length != COLUMNS) {
            throw new IllegalStateException(
                    "%s: a row must have %d cells, not %d: %s"
                            .formatted(RESOURCE, COLUMNS, cells.length, line));
        }
        return new Measurement(
                cells[0],
                cells[1],
                cells[2],
                number(cells[3]),
                number(cells[4]),
                number(cells[5]),
                number(cells[6]),
                (int) number(cells[7]),
                cells[8],
                (int) number(cells[9]),
                (int) number(cells[10]),
                cells[11].equals("replay"),
                Double.parseDouble(cells[12]),
                cells[13].isEmpty()
                        ? OptionalDouble.empty()
                        : OptionalDouble.of(Double.parseDouble(cells[13])),
                cells[14]);
    }

    private static long number(String cell) {
        return cell.isEmpty() ? 0 : Long.parseLong(cell);
    }
}
