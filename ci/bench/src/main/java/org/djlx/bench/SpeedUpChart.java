// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.List;
import java.util.Locale;

/**
 * An SVG bar chart of speed-ups, on white. Each case has a bar for this project and one for another
 * program. A line at 1 marks the baseline.
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
    private static final String GREY = "#57606a";
    private static final String INK = "#1f2328";

    /** One case, by operation and size: speed-ups over the baseline. */
    record Bar(String name, double ours, double other) {}

    private final StringBuilder svg = new StringBuilder();
    private final double most;

    private SpeedUpChart(double most) {
        this.most = most;
    }

    /**
     * Draws a chart. The title names the baseline, the subtitle the machine, the element type and
     * the timing method. Bars are from top to bottom, at least one.
     */
    static String draw(String title, String subtitle, String other, List<Bar> bars) {
        double largest =
                bars.stream().mapToDouble(b -> Math.max(b.ours, b.other)).max().orElseThrow();
        return new SpeedUpChart(Math.ceil(2 * largest) / 2).svg(title, subtitle, other, bars);
    }

    private String svg(String title, String subtitle, String other, List<Bar> bars) {
        int bottom = TOP + bars.size() * ROW;
        line(
                """
                <svg xmlns="http://www.w3.org/2000/svg" width="%1$d" height="%2$d" \
                viewBox="0 0 %1$d %2$d" font-family="Helvetica, Arial, sans-serif">
                <title>%3$s</title>
                <rect width="%1$d" height="%2$d" fill="#ffffff"/>\
                """,
                WIDTH, bottom + 34, escape(title + ", " + subtitle));
        text(16, 28, 18, "start", INK, "bold", title);
        text(16, 48, 13, "start", GREY, "normal", subtitle);
        line("<rect x=\"16\" y=\"60\" width=\"12\" height=\"12\" fill=\"%s\"/>", OURS);
        text(34, 71, 13, "start", INK, "normal", "DJL Collectives");
        line("<rect x=\"160\" y=\"60\" width=\"12\" height=\"12\" fill=\"%s\"/>", OTHER);
        text(178, 71, 13, "start", INK, "normal", other);
        for (double tick = 0; tick <= most; tick += most > 4 ? 1 : 0.5) {
            line(
                    "<line x1=\"%1$.1f\" y1=\"%2$d\" x2=\"%1$.1f\" y2=\"%3$d\" %4$s/>",
                    x(tick),
                    TOP,
                    bottom,
                    tick == 1
                            ? "stroke=\"" + INK + "\" stroke-width=\"1.5\""
                            : "stroke=\"#e1e4e8\" stroke-width=\"1\"");
            text(x(tick), bottom + 18, 12, "middle", INK, "normal", number("%.1f×", tick));
        }
        int y = TOP;
        for (Bar bar : bars) {
            text(LEFT - 10, y + ROW / 2 + 4, 13, "end", INK, "normal", bar.name);
            rectangle(y + ROW / 2 - BAR, bar.ours, OURS, "bold");
            rectangle(y + ROW / 2, bar.other, OTHER, "normal");
            y += ROW;
        }
        line("</svg>");
        return svg.toString();
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
