// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * One file of {@code ci/results} as Markdown: a line that names the machine and the versions, a
 * chart if PyTorch was measured, and tables. The resource {@code tables.json} has the texts and
 * columns of each benchmark; a text with a missing value is left out.
 */
final class ResultsSection {

    /** The sizes of operators that a chart shows: few enough to fit one screen. */
    private static final Pattern CHARTED =
            Pattern.compile("(512|2048|8192|16384), .*|1 KiB|64 KiB|1 MiB|16 MiB|64 MiB");

    private static final Map<String, String> OPERATIONS =
            Map.of(
                    "allGatherMatmul", "all-gather + matmul",
                    "matmulReduceScatter", "matmul + reduce-scatter",
                    "allReduceRmsNorm", "all-reduce + RMSNorm",
                    "allGather", "all-gather",
                    "reduceScatter", "reduce-scatter",
                    "allReduce", "all-reduce");

    private final String name;
    private final JsonObject report;
    private final JsonObject texts;

    /** Takes a report of a benchmark; older formats in {@code ci/results} are read, too. */
    ResultsSection(String name, JsonObject original) {
        this.name = name;
        report = original.deepCopy();
        String benchmark = report.get("benchmark").getAsString();
        texts =
                Columns.TEXTS.keySet().stream()
                        .filter(benchmark::startsWith)
                        .map(Columns.TEXTS::getAsJsonObject)
                        .findFirst()
                        .orElseThrow(
                                () ->
                                        new IllegalArgumentException(
                                                name
                                                        + ": no table is known for the benchmark: "
                                                        + benchmark));
        complete();
    }

    /** Adds the values that pages show but files do not have. */
    private void complete() {
        report.addProperty("file", name);
        report.addProperty("cards", cards());
        report.addProperty("one", report.has("gpus") ? "one GPU" : "one rank");
        report.addProperty("day", text("date").substring(0, 10));
        // 7 digits, and "-dirty" if it is there
        report.addProperty("commit", text("commit").replaceFirst("^(\\w{7})\\w*", "$1"));
        if (report.has("torch") && Character.isDigit(text("torch").charAt(0))) {
            report.getAsJsonObject("versions")
                    .addProperty("torch", text("torch").replaceFirst("\\+.*", ""));
        } else {
            report.remove("torch"); // the reason why PyTorch is missing
        }
        if (report.get("jvmOptions") instanceof JsonArray options && !options.isEmpty()) {
            report.addProperty(
                    "options",
                    options.asList().stream()
                            .map(JsonElement::getAsString)
                            .collect(Collectors.joining("` `", "`", "`")));
        }
        if (report.has("rows")) {
            list(report, "rows").forEach(ResultsSection::completeRow);
            report.add("cases", report.get("rows"));
        } else if (report.has("medians")) {
            report.add("cases", medians());
        } else if (report.has("config")) {
            completeGeneration(report.getAsJsonObject("config"));
        } else if (report.has("steps")) {
            report.add("cases", steps());
        }
    }

    private void completeGeneration(JsonObject config) {
        if (config.get("layerConfigs") instanceof JsonArray layers) {
            config.addProperty("layers", layers.size()); // Older files have the number.
        }
        if (report.has("quantization") && text("quantization").equals("NONE")) {
            report.remove("quantization");
        }
        if (!Columns.value("text kvCacheDtype", config).equals(Optional.of("FP8"))) {
            config.remove("kvCacheDtype");
        }
        JsonObject first = report.getAsJsonObject("firstToken");
        first.addProperty("milliseconds", first.get("medianMicros").getAsDouble() / 1000);
    }

    /** Adds names, PyTorch's best time and the limit to a row of operators. */
    static void completeRow(JsonObject row) {
        String[] words = row.get("operation").getAsString().split(" ", 2);
        String operation = OPERATIONS.get(words[0]) + (words.length == 1 ? "" : ", " + words[1]);
        row.addProperty("operation", operation);
        String size =
                row.has("mnk")
                        ? row.get("mnk").toString().replaceAll("[\\[\\]]", "").replace(",", ", ")
                        : bytes(row.get("bytes").getAsLong());
        row.addProperty("size", size);
        row.addProperty("label", operation + "  " + size);
        JsonObject replay = row.getAsJsonObject("replay");
        best(row, "replay.%s").ifPresent(best -> replay.add(GpuBenchRow.TORCH, best));
        best(row, "columns.%s.gpuMicros").ifPresent(best -> row.add("eagerTorch", best));
        if (replay.has(GpuBenchRow.MATMUL) && replay.has(GpuBenchRow.COMMUNICATION)) {
            double matmul = replay.get(GpuBenchRow.MATMUL).getAsDouble();
            double communication = replay.get(GpuBenchRow.COMMUNICATION).getAsDouble();
            row.addProperty("limit", Math.max(matmul, communication));
        }
        boolean isRight = row.get("error").getAsDouble() <= row.get("allowedError").getAsDouble();
        row.addProperty("verdict", isRight ? "" : "WRONG");
    }

    /** Returns the best time of PyTorch's operators. */
    private static Optional<JsonElement> best(JsonObject row, String path) {
        return Stream.of(GpuBenchRow.TORCH, GpuBenchRow.TORCH_ONE_SHOT, GpuBenchRow.TORCH_TWO_SHOT)
                .map(name -> Columns.at(row, path.formatted(name)))
                .filter(Objects::nonNull)
                .min(Comparator.comparing(JsonElement::getAsDouble));
    }

    /** Returns the times of an all-reduce on the CPU: an object a size, with each program. */
    private JsonArray medians() {
        Map<Long, JsonObject> cases = new TreeMap<>();
        JsonObject medians = report.getAsJsonObject("medians");
        for (String program : medians.keySet()) {
            for (JsonObject row : list(medians, program)) {
                long bytes = row.get("size").getAsLong();
                JsonObject found = cases.computeIfAbsent(bytes, size -> new JsonObject());
                found.addProperty("size", bytes(bytes));
                found.addProperty("label", "all-reduce  " + bytes(bytes));
                found.add(program, row.get("micros"));
            }
        }
        return array(cases);
    }

    /** Returns the times of a training step: an object a number of rows, with each contender. */
    private JsonArray steps() {
        Map<Long, JsonObject> cases = new TreeMap<>();
        for (JsonObject step : list(report, "steps")) {
            long rows = step.get("rows").getAsLong();
            JsonObject found = cases.computeIfAbsent(rows, size -> new JsonObject());
            found.addProperty("size", rows + " rows a rank");
            found.addProperty("label", "step, " + rows + " rows a rank");
            found.add(step.get("who").getAsString(), step.get("milliseconds"));
        }
        return array(cases);
    }

    private static JsonArray array(Map<Long, JsonObject> objects) {
        JsonArray array = new JsonArray();
        objects.values().forEach(array::add);
        return array;
    }

    private static List<JsonObject> list(JsonObject from, String key) {
        return from.getAsJsonArray(key).asList().stream()
                .map(JsonElement::getAsJsonObject)
                .toList();
    }

    private String text(String key) {
        return report.get(key).getAsString();
    }

    /** Returns the lines to put between a page's markers. */
    String markdown() {
        String chart = chart().isEmpty() ? "" : "![Speed-up on {text cards}](images/%s)\n\n";
        return parts(Columns.TEXTS.getAsJsonArray("header"))
                + Columns.fill(chart.formatted(chartName()), report)
                + parts(texts.getAsJsonArray("parts"));
    }

    private String parts(JsonArray parts) {
        return parts.asList().stream()
                .map(
                        part ->
                                part instanceof JsonObject table
                                        ? table(table)
                                        : Columns.fill(part.getAsString(), report))
                .collect(Collectors.joining());
    }

    private String table(JsonObject table) {
        Columns columns = Columns.of(table.getAsJsonObject("columns"));
        List<JsonObject> rows = list(report, table.get("rows").getAsString());
        return table.has("title")
                ? columns.transposed(table.get("title").getAsString(), rows, report).markdown()
                : columns.table(rows, "").markdownOfFilledColumns();
    }

    String chartName() {
        return name.replace(".json", ".svg");
    }

    /** Draws the chart of the page; empty if the file has nothing to compare with. */
    Optional<String> chart() {
        return chart(report.has("rows") ? CHARTED.asMatchPredicate() : size -> true);
    }

    /** Draws the chart of the sizes that are accepted; empty if none has all times. */
    Optional<String> chart(Predicate<String> accepted) {
        Map<String, SpeedUpChart.Bar> bars = new LinkedHashMap<>();
        JsonObject chart = texts.getAsJsonObject("chart");
        if (chart == null) {
            return Optional.empty();
        }
        for (JsonObject row : list(report, "cases")) {
            double[] times =
                    chart.getAsJsonArray("times").asList().stream()
                            .map(path -> Columns.at(row, path.getAsString()))
                            .filter(Objects::nonNull)
                            .mapToDouble(JsonElement::getAsDouble)
                            .toArray();
            if (times.length == 3 && accepted.test(row.get("size").getAsString())) {
                String label = row.get("label").getAsString();
                bars.put(
                        label,
                        new SpeedUpChart.Bar(label, times[0] / times[1], times[0] / times[2]));
            }
        }
        return bars.isEmpty()
                ? Optional.empty()
                : Optional.of(
                        SpeedUpChart.draw(
                                "Speed-up over " + chart.get("baseline").getAsString() + " (1.0×)",
                                Columns.fill(
                                        "{text cards}, %s; ci/results/{text file}"
                                                .formatted(chart.get("run").getAsString()),
                                        report),
                                chart.get("other").getAsString(),
                                List.copyOf(bars.values())));
    }

    /** Returns the report with the values that pages show. */
    JsonObject report() {
        return report;
    }

    /** Returns the case of a label. */
    JsonObject named(String label) {
        return list(report, "cases").stream()
                .filter(row -> row.get("label").getAsString().equals(label))
                .findFirst()
                .orElseThrow();
    }

    /** Returns the machine as in "4 × NVIDIA H200". */
    private String cards() {
        JsonElement gpus = report.get("gpus");
        if (gpus == null) {
            return text("machine") + ", " + text("cores") + " cores";
        }
        // Older files have the number of GPUs.
        return gpus instanceof JsonArray names
                ? names.size() + " × " + names.get(0).getAsString()
                : text("gpus") + " GPUs";
    }

    private static String bytes(long bytes) {
        if (bytes >= 1 << 20) {
            return bytes / (1 << 20) + " MiB";
        }
        return bytes >= 1 << 10 ? bytes / (1 << 10) + " KiB" : bytes + " B";
    }
}
