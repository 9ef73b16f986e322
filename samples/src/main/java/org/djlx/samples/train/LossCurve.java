/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.train;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import org.knowm.xchart.BitmapEncoder;
import org.knowm.xchart.BitmapEncoder.BitmapFormat;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.style.markers.SeriesMarkers;

/**
 * Losses over steps: kept beside checkpoints, so that a job that goes on has them all, and drawn.
 */
final class LossCurve {

    private static final int WIDTH = 900;
    private static final int HEIGHT = 500;

    private final List<Integer> steps = new ArrayList<>();
    private final List<Float> losses = new ArrayList<>();

    void add(int step, float loss) {
        steps.add(step);
        losses.add(loss);
    }

    List<Float> losses() {
        return losses;
    }

    /** Writes lines of a step and its loss, all or none. */
    void save(Path file) throws IOException {
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < steps.size(); i++) {
            lines.add(steps.get(i) + "," + losses.get(i));
        }
        Files.createDirectories(file.getParent());
        Path temporary = file.resolveSibling(file.getFileName() + ".incomplete");
        Files.write(temporary, lines);
        Files.move(temporary, file, StandardCopyOption.ATOMIC_MOVE);
    }

    /** Reads what was saved, up to a step; nothing if there is no such file. */
    void load(Path file, long last) throws IOException {
        if (!Files.exists(file)) {
            return;
        }
        for (String line : Files.readAllLines(file)) {
            String[] words = line.split(",");
            try {
                int step = Integer.parseInt(words[0]);
                if (step <= last) {
                    add(step, Float.parseFloat(words[1]));
                }
            } catch (RuntimeException e) {
                throw new IOException(file + " has a line that is no step and loss: " + line, e);
            }
        }
    }

    /** Draws a PNG. */
    void draw(Path file) throws IOException {
        System.setProperty("java.awt.headless", "true");
        XYChart chart =
                new XYChartBuilder()
                        .width(WIDTH)
                        .height(HEIGHT)
                        .title("Loss of a batch")
                        .xAxisTitle("step")
                        .yAxisTitle("nats a token")
                        .build();
        chart.getStyler().setLegendVisible(false);
        chart.getStyler().setYAxisMin(0.0);
        chart.addSeries("loss", steps, losses).setMarker(SeriesMarkers.NONE);
        try (OutputStream out = Files.newOutputStream(file)) {
            BitmapEncoder.saveBitmap(chart, out, BitmapFormat.PNG);
        }
    }
}
