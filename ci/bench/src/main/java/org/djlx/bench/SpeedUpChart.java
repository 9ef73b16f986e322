// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.List;
import java.util.Locale;
import java.util.stream.DoubleStream;

/**
 * An SVG bar chart of speed-ups, on white. Each case has a bar for this project and, if measured, a
 * bar for another program. A line at 1 marks the baseline.
 */
final class SpeedUpChart {

    private static final int WIDTH = 860;
    private static final int LEFT = 330;
    private static final int RIGHT = 60;
    private static final int TOP = 88;
    private static final int ROW = 34;
    private static final int BAR = 12;
    private static final String OURS = "#1f6feb";
    private static final String OTHER = "#9aa4b2";
    private static final String INK = "#1f2328";

    /**
     * One case, by operation and size: speed-ups over the baseline; {@code other} is null if it was
     * not measured.
     */
    record Bar(String name, double ours, Double other) {}

    private final StringBuilder svg = new StringBuilder();
    private final List<Bar> bars;
    private final double most;

    private SpeedUpChart(List<Bar> bars) {
        this.bars = bars;
        this.most =
                Math.ceil(
                                2
                                        * bars.stream()
                                                .flatMapToDouble(SpeedUpChart::values)
                                                .max()
                                                .orElseThrow())
                        / 2;
    }

    private static DoubleStream values(Bar bar) {
        return bar.other == null ? DoubleStream.of(bar.ours) : DoubleStream.of(bar.ours, bar.other);
    }

    /**
     * Draws a chart. The title names the baseline, the subtitle the machine, the element type and
     * the timing method. Bars are from top to bottom, at least one.
     */
    static String draw(String title, String subtitle, String other, List<Bar> bars) {
        return new SpeedUpChart(bars).draw(title, subtitle, other);
    }

    private String draw(String title, String subtitle, String other) {
        int bottom = TOP + bars.size() * ROW;
        int height = bottom + 34;
        line(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0"
                        + " %d %d\" font-family=\"Helvetica, Arial, sans-serif\">",
                WIDTH, height, WIDTH, height);
        line("<title>%s</title>", escape(title + ", " + subtitle));
        line("<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>", WIDTH, height);
        text(16, 28, 18, "start", INK, "bold", title);
        text(16, 48, 13, "start", "#57606a", "normal", subtitle);
        line("<rect x=\"16\" y=\"60\" width=\"12\" height=\"12\" fill=\"%s\"/>", OURS);
        text(34, 71, 13, "start", INK, "normal", "DJL Collectives");
        if (bars.stream().anyMatch(bar -> bar.other != null)) {
            line("<rect x=\"160\" y=\"60\" width=\"12\" height=\"12\" fill=\"%s\"/>", OTHER);
            text(178, 71, 13, "start", INK, "normal", other);
        }
        for (double tick = 0; tick <= most; tick += most > 4 ? 1 : 0.5) {
            boolean baseline = tick == 1;
            line(
                    "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\""
                            + " stroke-width=\"%s\"/>",
                    x(tick),
                    TOP,
                    x(tick),
                    bottom,
                    baseline ? INK : "#e1e4e8",
                    baseline ? "1.5" : "1");
            text(x(tick), bottom + 18, 12, "middle", INK, "normal", number("%.1f×", tick));
        }
        for (int i = 0; i < bars.size(); i++) {
            bar(bars.get(i), TOP + i * ROW);
        }
        line("</svg>");
        return svg.toString();
    }

    private void bar(Bar bar, int y) {
        int first = bar.other == null ? y + (ROW - BAR) / 2 : y + (ROW - 2 * BAR) / 2;
        text(LEFT - 10, y + ROW / 2 + 4, 13, "end", INK, "normal", bar.name);
        rectangle(first, bar.ours, OURS, "bold");
        if (bar.other != null) {
            rectangle(first + BAR, bar.other, OTHER, "normal");
        }
    }

    private void rectangle(int y, double value, String colour, String weight) {
        line(
                "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>",
                LEFT, y, x(value) - LEFT, BAR - 1, colour);
        text(x(value) + 5, y + BAR - 2, 11, "start", INK, weight, number("%.2f×", value));
    }

    private double x(double value) {
        return LEFT + value * (WIDTH - LEFT - RIGHT) / most;
    }

    private void text(
            double x, int y, int size, String anchor, String colour, String weight, String text) {
        line(
                "<text x=\"%.1f\" y=\"%d\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\""
                        + " font-weight=\"%s\" paint-order=\"stroke\" stroke=\"#ffffff\""
                        + " stroke-width=\"3\">%s</text>",
                x, y, size, anchor, colour, weight, escape(text));
    }

    private static String number(String format, double value) {
        return String.format(Locale.ROOT, format, value);
    }

    private static String escape(String text) {
        return text.replace("&", "&amp;").replace("<", "&lt;");
    }

    private void line(String format, Object... args) {
        svg.append(String.format(Locale.ROOT, format, args)).append('\n');
    }
}
