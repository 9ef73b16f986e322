/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.knowm.xchart.BitmapEncoder;
import org.knowm.xchart.BitmapEncoder.BitmapFormat;
import org.knowm.xchart.XYChart;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** {@code bench-chart}: draws the results of {@code bench-gpu}. */
@Command(
        name = "bench-chart",
        description =
                "Draws the results of bench-gpu as PNG: all-reduces over their size, fused"
                        + " operators over M for each N and K, with the limit.")
public final class BenchChartCommand implements Callable<Integer> {

    @Spec private CommandSpec spec;

    @Parameters(
            index = "0",
            paramLabel = "RESULTS",
            description = "The results of bench-gpu, JSON.")
    private Path results;

    @Parameters(
            index = "1",
            paramLabel = "FOLDER",
            description =
                    "The folder for the charts, which are named after the results, the operation, N"
                            + " and K.")
    private Path folder;

    private BenchChartCommand() {}

    @Override
    public Integer call() throws IOException {
        System.setProperty("java.awt.headless", "true");
        Map<String, XYChart> charts = GpuBenchCharts.of(rows());
        if (charts.isEmpty()) {
            throw new IllegalStateException(
                    results + " has no operation at two or more sizes, which a chart takes");
        }
        Files.createDirectories(folder);
        String prefix = results.getFileName().toString().replaceFirst("\\.json$", "");
        for (Map.Entry<String, XYChart> chart : charts.entrySet()) {
            Path file = folder.resolve(prefix + "-" + chart.getKey() + ".png");
            BitmapEncoder.saveBitmap(chart.getValue(), file.toString(), BitmapFormat.PNG);
            spec.commandLine().getOut().println(file);
        }
        return 0;
    }

    private List<GpuBenchRow> rows() throws IOException {
        List<GpuBenchRow> rows = new ArrayList<>();
        try {
            JsonElement report = JsonParser.parseString(Files.readString(results));
            for (JsonElement row : report.getAsJsonObject().getAsJsonArray("rows")) {
                rows.add(new Gson().fromJson(row, GpuBenchRow.class));
            }
        } catch (RuntimeException e) {
            throw new IllegalArgumentException(results + " is not a report of bench-gpu", e);
        }
        if (rows.stream().anyMatch(BenchChartCommand::isNoCase)) {
            throw new IllegalArgumentException(results + " has rows without operation or size");
        }
        if (rows.stream().anyMatch(row -> row.columns() == null || row.replay() == null)) {
            throw new IllegalArgumentException(
                    results + " has rows without replayed times; run bench-gpu again");
        }
        return rows;
    }

    private static boolean isNoCase(GpuBenchRow row) {
        return row == null || row.operation() == null || row.bytes() == null && row.mnk() == null;
    }
}
