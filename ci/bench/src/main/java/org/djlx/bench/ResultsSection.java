// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Stream;
import org.djlx.llm.text.template.Template;

/**
 * A report with the values that its tables and charts show, in the variables of the template {@code
 * results.jinja}, which writes them.
 */
final class ResultsSection {

    /** The sizes of operators that a chart shows: few enough to fit one screen. */
    private static final List<String> CHARTED =
            List.of("512", "2048", "8192", "16384", "1 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB");

    private static final Map<String, String> OPERATIONS =
            Map.of(
                    "allGatherMatmul", "all-gather + matmul",
                    "matmulReduceScatter", "matmul + reduce-scatter",
                    "allReduceRmsNorm", "all-reduce + RMSNorm",
                    "allGather", "all-gather",
                    "reduceScatter", "reduce-scatter",
                    "allToAll", "all-to-all",
                    "broadcast", "broadcast",
                    "expertExchange", "to experts and back",
                    "allReduce", "all-reduce");

    private static final Template TEMPLATE = template();

    private final JsonObject report;

    /** Takes a report of a benchmark; older formats in {@code ci/results} are read, too. */
    ResultsSection(String name, JsonObject original) {
        report = original.deepCopy();
        report.addProperty("file", name);
        if (report.has("torch") && !report.get("torch").getAsString().matches("\\d.*")) {
            report.remove("torch"); // the reason why PyTorch is missing
        }
        if (report.has("rows")) {
            JsonArray rows = report.getAsJsonArray("rows");
            rows.forEach(row -> completeRow(row.getAsJsonObject()));
            report.add("cases", rows);
        } else if (report.has("medians")) {
            report.add("cases", medians());
        } else if (report.has("steps") && !report.has("config")) {
            report.add("cases", steps());
        }
    }

    /**
     * Marks a report of GPUs as older if it was measured before {@code latest}, at another commit.
     */
    void compareAge(ResultsSection latest) {
        if (report.has("gpus")
                && !report.get("commit").equals(latest.report.get("commit"))
                && text("date").compareTo(latest.text("date")) < 0) {
            report.addProperty("older", true);
        }
    }

    private String text(String name) {
        return report.get(name).getAsString();
    }

    private static Template template() {
        try (InputStream in = ResultsSection.class.getResourceAsStream("results.jinja")) {
            return Template.parse(new String(in.readAllBytes(), StandardCharsets.UTF_8));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Adds names, PyTorch's best time and the limit to a row of operators. */
    private static void completeRow(JsonObject row) {
        String[] words = row.get("operation").getAsString().split(" ", 2);
        String operation = OPERATIONS.get(words[0]) + (words.length == 1 ? "" : ", " + words[1]);
        String size =
                row.has("mnk")
                        ? row.get("mnk").toString().replaceAll("[\\[\\]]", "").replace(",", ", ")
                        : bytes(row.get("bytes").getAsLong());
        row.addProperty("operation", operation);
        label(row, operation + "  " + size, size);
        JsonObject replay = row.getAsJsonObject("replay");
        JsonObject columns = row.getAsJsonObject("columns");
        addBest(replay, GpuBenchRow.TORCH, replay::get);
        addBest(
                row,
                "eagerTorch",
                name -> columns.has(name) ? columns.getAsJsonObject(name).get("gpuMicros") : null);
        if (replay.has(GpuBenchRow.MATMUL) && replay.has(GpuBenchRow.COMMUNICATION)) {
            double matmul = replay.get(GpuBenchRow.MATMUL).getAsDouble();
            double communication = replay.get(GpuBenchRow.COMMUNICATION).getAsDouble();
            row.addProperty("limit", Math.max(matmul, communication));
        }
        boolean isRight = row.get("error").getAsDouble() <= row.get("allowedError").getAsDouble();
        row.addProperty("verdict", isRight ? "" : "WRONG");
    }

    private static void label(JsonObject row, String label, String size) {
        row.addProperty("label", label);
        row.addProperty("size", size);
    }

    /** Adds the best time of PyTorch's operators, if it was measured. */
    private static void addBest(JsonObject to, String field, Function<String, JsonElement> time) {
        Stream.of(GpuBenchRow.TORCH, GpuBenchRow.TORCH_ONE_SHOT, GpuBenchRow.TORCH_TWO_SHOT)
                .map(time)
                .filter(Objects::nonNull)
                .min(Comparator.comparing(JsonElement::getAsDouble))
                .ifPresent(best -> to.add(field, best));
    }

    /** Returns the times of an all-reduce on the CPU: an object a size, with each program. */
    private JsonArray medians() {
        Map<Long, JsonObject> cases = new TreeMap<>();
        report.getAsJsonObject("medians")
                .asMap()
                .forEach(
                        (program, rows) -> {
                            for (JsonElement each : rows.getAsJsonArray()) {
                                JsonObject row = each.getAsJsonObject();
                                long size = row.get("size").getAsLong();
                                addTime(cases, size, program, row.get("micros"));
                            }
                        });
        cases.forEach((size, row) -> label(row, "all-reduce  " + bytes(size), bytes(size)));
        return array(cases);
    }

    /** Returns the times of a training step: an object a number of rows, with each contender. */
    private JsonArray steps() {
        Map<Long, JsonObject> cases = new TreeMap<>();
        for (JsonElement each : report.getAsJsonArray("steps")) {
            JsonObject step = each.getAsJsonObject();
            long rows = step.get("rows").getAsLong();
            addTime(cases, rows, step.get("who").getAsString(), step.get("milliseconds"));
        }
        cases.forEach((n, row) -> label(row, "step, " + n + " rows a rank", n + " rows a rank"));
        return array(cases);
    }

    private static void addTime(
            Map<Long, JsonObject> cases, long size, String contender, JsonElement time) {
        cases.computeIfAbsent(size, key -> new JsonObject()).add(contender, time);
    }

    private static JsonArray array(Map<Long, JsonObject> objects) {
        JsonArray array = new JsonArray();
        objects.values().forEach(array::add);
        return array;
    }

    private static String bytes(long bytes) {
        if (bytes >= 1 << 20) {
            return bytes / (1 << 20) + " MiB";
        }
        return bytes >= 1 << 10 ? bytes / (1 << 10) + " KiB" : bytes + " B";
    }

    /** Returns the lines to put between a page's markers. */
    String markdown() {
        return render("page", values(), CHARTED);
    }

    String printed() {
        return render("printed", values(), CHARTED);
    }

    /** Draws the chart of the page; empty if the file has nothing to compare with. */
    String chart() {
        return chart(CHARTED);
    }

    /** Draws a chart of sizes of operators, whole or by their first number. */
    String chart(List<String> sizes) {
        return render("chart", values(), sizes);
    }

    /** Returns the rows of the README from several sections by file. */
    static String highlights(Map<String, ResultsSection> sections) {
        Map<String, Object> reports = new TreeMap<>();
        sections.forEach((name, section) -> reports.put(name, section.values()));
        return render("highlights", reports, CHARTED);
    }

    private Object values() {
        return BenchReport.GSON.fromJson(report, Object.class);
    }

    private static String render(String what, Object report, List<String> sizes) {
        return TEMPLATE.render(Map.of("what", what, "r", report, "sizes", sizes));
    }
}
