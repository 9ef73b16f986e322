// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.djlx.nativeops.host.FileWrites;
import org.knowm.xchart.BitmapEncoder;
import org.knowm.xchart.BitmapEncoder.BitmapFormat;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.style.lines.SeriesLines;
import org.knowm.xchart.style.markers.SeriesMarkers;

/** Training and held-out losses over steps: saved in the folder of checkpoints, and drawn. */
final class LossCurve {

    private static final int WIDTH = 900;
    private static final int HEIGHT = 500;

    private final List<Integer> steps = new ArrayList<>();
    private final List<Float> losses = new ArrayList<>();
    private final List<Float> heldOut = new ArrayList<>();

    void add(int step, float loss, float heldOutLoss) {
        steps.add(step);
        losses.add(loss);
        heldOut.add(heldOutLoss);
    }

    /** The training loss of the last step; NaN if there is none. */
    float last() {
        return losses.isEmpty() ? Float.NaN : losses.get(losses.size() - 1);
    }

    /** The held-out loss of the last step; NaN if there is none. */
    float lastHeldOut() {
        return heldOut.isEmpty() ? Float.NaN : heldOut.get(heldOut.size() - 1);
    }

    /** Writes a line for each step, with its losses; the file is replaced as a whole. */
    void save(Path file) throws IOException {
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < steps.size(); i++) {
            lines.add(steps.get(i) + "," + losses.get(i) + "," + heldOut.get(i));
        }
        Files.createDirectories(file.getParent());
        Path temporary = file.resolveSibling(file.getFileName() + ".incomplete");
        FileWrites.naming(file, () -> Files.write(temporary, lines));
        Files.move(temporary, file, StandardCopyOption.ATOMIC_MOVE);
    }

    /** Reads a saved curve up to a step; does nothing if there is no such file. */
    void load(Path file, long last) throws IOException {
        if (!Files.exists(file)) {
            return;
        }
        for (String line : Files.readAllLines(file)) {
            String[] words = line.split(",");
            try {
                int step = Integer.parseInt(words[0]);
                if (step <= last) {
                    add(step, Float.parseFloat(words[1]), Float.parseFloat(words[2]));
                }
            } catch (RuntimeException e) {
                throw new IOException(file + ": expected a step and two losses, found: " + line, e);
            }
        }
    }

    /** Draws curves into one PNG, by the names of their runs; a single run needs no name. */
    static void draw(Path file, Map<String, LossCurve> curves) throws IOException {
        System.setProperty("java.awt.headless", "true");
        XYChart chart =
                new XYChartBuilder()
                        .width(WIDTH)
                        .height(HEIGHT)
                        .title("Loss over steps")
                        .xAxisTitle("step")
                        .yAxisTitle("nats per token")
                        .build();
        chart.getStyler().setYAxisMin(0.0);
        curves.forEach(
                (run, curve) -> {
                    String before = run.isEmpty() ? "" : run + ", ";
                    chart.addSeries(before + "training", curve.steps, curve.losses)
                            .setMarker(SeriesMarkers.NONE)
                            .setLineStyle(SeriesLines.SOLID);
                    chart.addSeries(before + "held out", curve.steps, curve.heldOut)
                            .setMarker(SeriesMarkers.NONE)
                            .setLineStyle(SeriesLines.DASH_DASH);
                });
        FileWrites.naming(
                file,
                () -> {
                    try (OutputStream out = Files.newOutputStream(file)) {
                        BitmapEncoder.saveBitmap(chart, out, BitmapFormat.PNG);
                    }
                });
    }
}
