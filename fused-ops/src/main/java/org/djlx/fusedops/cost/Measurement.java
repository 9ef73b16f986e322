/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.OptionalDouble;

/**
 * A row of what was measured; the resource {@code measurements.csv} says what its columns hold, and
 * where it is from.
 *
 * @param machine the GPUs, as a {@link Machine} is named
 * @param type the element type
 * @param operator the method of a fused operator, or what else was measured
 * @param m the rows of the unsharded A; 0 where it has none
 * @param n the columns of the unsharded B; 0 where it has none
 * @param k what they have in common; 0 where they have nothing
 * @param bytes into each GPU, for a push; otherwise 0
 * @param ranks the number of ranks; 0 for what has none
 * @param path how it was done
 * @param tile the columns of a tile of one launch, if that is known; otherwise 0
 * @param pushers how many blocks pushed in one launch; 0 where none did, or the tile is not known
 * @param recorded whether a graph was replayed, or the host's time left out
 * @param micros how long it took, in microseconds
 * @param host how long the call took the thread, in microseconds, if that was measured
 * @param source where it is from
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

    /**
     * Reads all rows.
     *
     * @return the rows, in the order of the resource
     */
    public static List<Measurement> all() {
        try (BufferedReader reader =
                new BufferedReader(
                        new InputStreamReader(
                                Measurement.class.getResourceAsStream(RESOURCE),
                                StandardCharsets.UTF_8))) {
            // The first line that is no comment names the columns.
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
            throw new IllegalStateException(RESOURCE + ": " + cells.length + " cells: " + line);
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
