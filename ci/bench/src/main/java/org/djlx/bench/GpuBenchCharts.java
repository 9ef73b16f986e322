/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import static org.djlx.bench.GpuBenchRow.COMMUNICATION;
import static org.djlx.bench.GpuBenchRow.MATMUL;
import static org.djlx.bench.GpuBenchRow.NCCL;
import static org.djlx.bench.GpuBenchRow.NCCL_WINDOWS;
import static org.djlx.bench.GpuBenchRow.OURS;
import static org.djlx.bench.GpuBenchRow.OURS_APART;
import static org.djlx.bench.GpuBenchRow.TORCH;
import static org.djlx.bench.GpuBenchRow.TORCH_ONE_SHOT;
import static org.djlx.bench.GpuBenchRow.TORCH_TWO_SHOT;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.djlx.bench.GpuBenchCase.Operation;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.style.Styler;
import org.knowm.xchart.style.lines.SeriesLines;
import org.knowm.xchart.style.markers.SeriesMarkers;

/**
 * Charts of {@code bench-gpu}'s rows: all-reduces over their size, and fused operators over M for
 * each N and K, with the limit. Both axes are logarithmic.
 */
final class GpuBenchCharts {

    private static final int WIDTH = 900;
    private static final int HEIGHT = 560;
    private static final int FEWEST_POINTS = 2;

    private GpuBenchCharts() {}

    /** Returns the charts by their file names; a single row has no chart. */
    static Map<String, XYChart> of(List<GpuBenchRow> rows) {
        Map<String, List<GpuBenchRow>> families =
                rows.stream()
                        .collect(
                                Collectors.groupingBy(
                                        GpuBenchCharts::family,
                                        LinkedHashMap::new,
                                        Collectors.toList()));
        Map<String, XYChart> charts = new LinkedHashMap<>();
        families.forEach(
                (name, members) -> {
                    List<GpuBenchRow> sorted = new ArrayList<>(members);
                    sorted.sort(Comparator.comparingDouble(GpuBenchCharts::x));
                    if (x(sorted.get(sorted.size() - 1)) > x(sorted.get(0))) {
                        charts.put(name, chart(sorted));
                    }
                });
        return charts;
    }

    private static boolean is(GpuBenchRow row, Operation operation) {
        return row.operation().equals(operation.name());
    }

    private static String family(GpuBenchRow row) {
        if (is(row, Operation.allReduce)) {
            return row.operation();
        }
        return row.mnk().stream()
                .skip(1)
                .map(String::valueOf)
                .collect(Collectors.joining("x", row.operation() + "-", ""));
    }

    private static double x(GpuBenchRow row) {
        return is(row, Operation.allReduce) ? row.bytes() : row.mnk().get(0);
    }

    private static XYChart chart(List<GpuBenchRow> rows) {
        if (is(rows.get(0), Operation.allReduce)) {
            return reduce(rows);
        }
        return is(rows.get(0), Operation.allReduceRmsNorm) ? norm(rows) : fused(rows);
    }

    private static XYChart norm(List<GpuBenchRow> rows) {
        GpuBenchRow first = rows.get(0);
        String title = "all-reduce and RMSNorm, rows of " + first.mnk().get(1);
        XYChart chart = chart(first, title, "rows");
        add(chart, "ours", rows, row -> row.replay().get(OURS));
        add(chart, "ours, not fused", rows, row -> row.replay().get(OURS_APART));
        add(chart, "NCCL and libtorch", rows, row -> row.replay().get(NCCL));
        add(chart, "NCCL's all-reduce alone", rows, row -> row.replay().get(COMMUNICATION));
        add(chart, "ours, eager", rows, GpuBenchCharts::eager);
        return chart;
    }

    private static XYChart reduce(List<GpuBenchRow> rows) {
        XYChart chart = chart(rows.get(0), "all-reduce", "bytes");
        add(chart, "ours", rows, row -> row.replay().get(OURS));
        add(chart, "NCCL", rows, row -> row.replay().get(NCCL));
        add(chart, "NCCL, symmetric windows", rows, row -> row.replay().get(NCCL_WINDOWS));
        add(chart, "PyTorch, one-shot", rows, row -> row.replay().get(TORCH_ONE_SHOT));
        add(chart, "PyTorch, two-shot", rows, row -> row.replay().get(TORCH_TWO_SHOT));
        add(chart, "ours, eager", rows, GpuBenchCharts::eager);
        return chart;
    }

    private static XYChart fused(List<GpuBenchRow> rows) {
        GpuBenchRow first = rows.get(0);
        String title =
                String.format(
                        "%s, N = %d, K = %d",
                        first.operation(), first.mnk().get(1), first.mnk().get(2));
        XYChart chart = chart(first, title, "M");
        add(chart, "ours", rows, row -> row.replay().get(OURS));
        add(chart, "NCCL and matmul", rows, row -> row.replay().get(NCCL));
        add(chart, "PyTorch, fused", rows, row -> row.replay().get(TORCH));
        add(chart, "ours, eager", rows, GpuBenchCharts::eager);
        add(chart, "limit: the longer of matmul and communication", rows, GpuBenchCharts::limit);
        return chart;
    }

    private static Double eager(GpuBenchRow row) {
        CallTimes times = row.columns().get(OURS);
        return times == null ? null : times.gpuMicros();
    }

    /** Returns the time of an operator that hides the shorter of matmul and communication. */
    static Double limit(GpuBenchRow row) {
        Double matmul = row.replay().get(MATMUL);
        Double communication = row.replay().get(COMMUNICATION);
        return matmul == null || communication == null
                ? matmul
                : Double.valueOf(Math.max(matmul, communication));
    }

    private static XYChart chart(GpuBenchRow row, String title, String x) {
        XYChart chart =
                new XYChartBuilder()
                        .width(WIDTH)
                        .height(HEIGHT)
                        .title(
                                String.format(
                                        "%s, bfloat16, %d ranks, replayed from a graph unless"
                                                + " eager",
                                        title, row.ranks()))
                        .xAxisTitle(x)
                        .yAxisTitle("microseconds")
                        .build();
        chart.getStyler()
                .setXAxisLogarithmic(true)
                .setYAxisLogarithmic(true)
                .setLegendPosition(Styler.LegendPosition.InsideNW);
        return chart;
    }

    /** Adds a line through the measured points, if there are two or more. */
    private static void add(
            XYChart chart,
            String name,
            List<GpuBenchRow> rows,
            Function<GpuBenchRow, Double> micros) {
        List<Double> xs = new ArrayList<>();
        List<Double> ys = new ArrayList<>();
        for (GpuBenchRow row : rows) {
            Double y = micros.apply(row);
            if (y != null) {
                xs.add(x(row));
                ys.add(y);
            }
        }
        if (xs.size() < FEWEST_POINTS) {
            return;
        }
        var series = chart.addSeries(name, xs, ys);
        if (name.startsWith("limit") || name.endsWith("eager")) {
            series.setMarker(SeriesMarkers.NONE).setLineStyle(SeriesLines.DASH_DASH);
        }
    }
}
