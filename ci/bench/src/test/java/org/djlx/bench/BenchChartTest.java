/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.awt.image.BufferedImage;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import javax.imageio.ImageIO;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYSeries;
import picocli.CommandLine;

/** Charts of rows that nobody has measured. */
@Timeout(120)
class BenchChartTest {

    private final StringWriter out = new StringWriter();
    private final StringWriter err = new StringWriter();

    @TempDir private Path dir;

    private int run(Path results) {
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(err, true));
        return root.execute("bench-chart", results.toString(), dir.resolve("charts").toString());
    }

    private static GpuBenchRow fused(int m, double micros) {
        return new GpuBenchRow(
                "allGatherMatmul",
                List.of(m, 8192, 4096),
                null,
                2,
                2,
                2,
                0,
                0.01,
                Map.of("ours", new CallTimes(micros + 5, 20.0, null, null, null, null, null)),
                Map.of(
                        "ours",
                        micros,
                        "nccl",
                        2 * micros,
                        "matmul",
                        0.9 * micros,
                        "communication",
                        40.0),
                Map.of());
    }

    private static GpuBenchRow reduce(long bytes, Map<String, Double> replay) {
        return new GpuBenchRow(
                "allReduce", null, bytes, 2, 2, 2, 0, 0.01, Map.of(), replay, Map.of());
    }

    private static GpuBenchRow norm(int m, Map<String, Double> replay) {
        return new GpuBenchRow(
                "allReduceRmsNorm",
                List.of(m, 4096),
                null,
                2,
                2,
                2,
                0,
                0.01,
                Map.of(),
                replay,
                Map.of());
    }

    private static List<GpuBenchRow> rows() {
        List<GpuBenchRow> rows = new ArrayList<>();
        rows.add(norm(8, Map.of("ours", 4.0, "oursApart", 6.0, "communication", 7.0)));
        rows.add(norm(1, Map.of("ours", 3.0, "oursApart", 5.0, "communication", 6.0)));
        rows.add(fused(64, 80));
        rows.add(fused(16, 20));
        rows.add(fused(32, 40));
        rows.add(reduce(1024, Map.of("ours", 2.5, "torchOneShot", 7.0)));
        rows.add(reduce(2048, Map.of("ours", 2.6)));
        rows.add(reduce(4096, Map.of("ours", 2.7, "torchOneShot", 7.5)));
        return rows;
    }

    private static double[] ys(XYChart chart, String series) {
        return chart.getSeriesMap().get(series).getYData();
    }

    @Test
    void everyFamilyHasAChartOverItsSizes() {
        Map<String, XYChart> charts = GpuBenchCharts.of(rows());
        assertEquals(
                Set.of("allGatherMatmul-8192x4096", "allReduce", "allReduceRmsNorm-4096"),
                charts.keySet());
        XYChart norm = charts.get("allReduceRmsNorm-4096");
        assertEquals(List.of(1.0, 8.0), boxed(norm.getSeriesMap().get("ours").getXData()));
        assertEquals(List.of(5.0, 6.0), boxed(ys(norm, "ours, not fused")));
        assertEquals(List.of(6.0, 7.0), boxed(ys(norm, "NCCL's all-reduce alone")));
        XYChart fused = charts.get("allGatherMatmul-8192x4096");
        XYSeries ours = fused.getSeriesMap().get("ours");
        assertEquals(List.of(16.0, 32.0, 64.0), boxed(ours.getXData()));
        assertEquals(List.of(20.0, 40.0, 80.0), boxed(ours.getYData()));
        assertEquals(List.of(25.0, 45.0, 85.0), boxed(ys(fused, "ours, eager")));
        assertEquals(
                List.of(40.0, 40.0, 72.0),
                boxed(ys(fused, "limit: the longer of matmul and communication")));
        assertTrue(!fused.getSeriesMap().containsKey("PyTorch, fused"));
    }

    /** Other points of the line stay where they belong. */
    @Test
    void whatWasNotMeasuredIsLeftOut() {
        XYChart chart = GpuBenchCharts.of(rows()).get("allReduce");
        XYSeries torch = chart.getSeriesMap().get("PyTorch, one-shot");
        assertEquals(List.of(1024.0, 4096.0), boxed(torch.getXData()));
        assertEquals(List.of(7.0, 7.5), boxed(torch.getYData()));
    }

    private static List<Double> boxed(double[] values) {
        return Arrays.stream(values).boxed().toList();
    }

    @Test
    void drawsWhatAReportHolds() throws Exception {
        Path results = dir.resolve("gpu.json");
        BenchReport report = new BenchReport("some", "c0ffee", Map.of());
        report.put("rows", rows());
        report.store(results);
        assertEquals(0, run(results), err::toString);
        Set<String> names;
        try (var files = Files.list(dir.resolve("charts"))) {
            names =
                    files.map(file -> file.getFileName().toString())
                            .collect(Collectors.toCollection(TreeSet::new));
        }
        assertEquals(
                Set.of(
                        "gpu-allGatherMatmul-8192x4096.png",
                        "gpu-allReduce.png",
                        "gpu-allReduceRmsNorm-4096.png"),
                names);
        BufferedImage image =
                ImageIO.read(dir.resolve("charts").resolve("gpu-allReduce.png").toFile());
        // Our line is of the first colour, translucent on white; in it there is more than a legend.
        long ours =
                IntStream.range(0, image.getWidth() * image.getHeight())
                        .map(i -> image.getRGB(i % image.getWidth(), i / image.getWidth()))
                        .filter(rgb -> (rgb & 0xff) > 0xf0 && (rgb >> 16 & 0xff) < 0x80)
                        .count();
        assertTrue(ours > 500, () -> ours + " blue points");
    }

    @Test
    void whatCannotBeDrawnIsSaid() throws Exception {
        Path results = dir.resolve("gpu.json");
        for (String wrong :
                List.of(
                        "[]",
                        "{",
                        "{\"rows\": 1}",
                        "{\"rows\": [{\"bytes\": 1}]}",
                        "{\"rows\": [null, {}]}",
                        "{\"rows\": [{\"operation\": \"allReduce\", \"columns\": {}, \"replay\":"
                                + " {}}]}",
                        "{\"rows\": []}")) {
            Files.writeString(results, wrong);
            assertEquals(1, run(results), wrong);
            assertTrue(err.toString().contains("gpu.json"), err::toString);
            err.getBuffer().setLength(0);
        }
    }

    @Test
    void aFileThatIsNotThereIsSaid() {
        assertEquals(2, run(dir.resolve("none.json")));
        assertTrue(err.toString().contains("none.json: no such file or folder"), err::toString);
    }
}
