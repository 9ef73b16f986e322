/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * One file of {@code ci/results} as Markdown: a line that names the machine and the versions, a
 * chart where PyTorch was measured, and a table.
 */
final class ResultsSection {

    /** Sizes that a chart shows: enough of them, and one screen. */
    private static final Set<Integer> CHART_ROWS = Set.of(512, 2048, 8192, 16384);

    private static final Set<Long> CHART_BYTES =
            Set.of(1L << 10, 1L << 16, 1L << 20, 1L << 24, 1L << 26);

    private final String name;
    private final JsonObject report;

    ResultsSection(String name, JsonObject report) {
        this.name = name;
        this.report = report;
    }

    /** Returns the lines between the markers. */
    String markdown() {
        String benchmark = report.get("benchmark").getAsString();
        StringBuilder text = new StringBuilder(machine()).append("\n\n");
        chart(row -> true)
                .ifPresent(
                        chart ->
                                text.append(
                                        String.format(
                                                "![Speed-up on %s](images/%s)%n%n",
                                                cards(), chartName())));
        if (benchmark.startsWith("all_reduce and fused operators")) {
            text.append(operators());
        } else if (benchmark.startsWith("text generation")) {
            text.append(generation());
        } else if (benchmark.startsWith("a data-parallel training step")) {
            text.append(training());
        } else if (benchmark.startsWith("a transformer block")) {
            text.append(block());
        } else if (benchmark.startsWith("float32 all_reduce")) {
            text.append(hostAllReduce());
        } else if (benchmark.startsWith("float32 coalesced")) {
            text.append(coalesced());
        } else if (benchmark.equals("tests")) {
            text.append(tests());
        } else {
            throw new IllegalArgumentException(
                    name + ": no table is known for the benchmark: " + benchmark);
        }
        return text.toString();
    }

    /** Returns the chart's file name in docs/images. */
    String chartName() {
        return name.replace(".json", ".svg");
    }

    /**
     * Draws the chart of this file.
     *
     * @param accepted selects rows of operators from the rows that charts can show
     * @return the chart; empty if the file has nothing to compare with
     */
    Optional<String> chart(Predicate<GpuBenchRow> accepted) {
        String benchmark = report.get("benchmark").getAsString();
        if (benchmark.startsWith("float32 all_reduce")) {
            return Optional.of(hostChart());
        }
        if (benchmark.startsWith("a data-parallel training step")) {
            return Optional.of(trainingChart());
        }
        List<SpeedUpChart.Bar> bars = new ArrayList<>();
        for (GpuBenchRow row : chartRows(accepted)) {
            bars.add(
                    new SpeedUpChart.Bar(
                            operation(row) + "  " + size(row),
                            baseline(row) / ours(row),
                            baseline(row) / torch(row)));
        }
        return bars.isEmpty()
                ? Optional.empty()
                : Optional.of(
                        SpeedUpChart.draw(
                                "Speed-up over NCCL + matmul (1.0×)",
                                String.format(
                                        "%s, bfloat16, CUDA graph replay; NCCL %s, PyTorch %s;"
                                                + " ci/results/%s",
                                        cards(), version("nccl"), version("torch"), name),
                                "PyTorch symmetric memory",
                                bars));
    }

    private String hostChart() {
        List<SpeedUpChart.Bar> bars = new ArrayList<>();
        medians()
                .forEach(
                        (size, row) ->
                                bars.add(
                                        new SpeedUpChart.Bar(
                                                "all-reduce  " + bytes(size),
                                                row.get("openmpi") / row.get("processes"),
                                                row.get("openmpi") / row.get("gloo"))));
        return SpeedUpChart.draw(
                "Speed-up over Open MPI (1.0×)",
                String.format("%s, float32, two processes; ci/results/%s", cards(), name),
                "Gloo",
                bars);
    }

    private String trainingChart() {
        List<SpeedUpChart.Bar> bars = new ArrayList<>();
        steps().forEach(
                        (rows, step) ->
                                bars.add(
                                        new SpeedUpChart.Bar(
                                                "step, " + rows + " rows a rank",
                                                step.get("DJL") / step.get("P2P"),
                                                step.get("DJL") / step.get("TORCH_DDP"))));
        return SpeedUpChart.draw(
                "Speed-up over DJL's engine PyTorch (1.0×)",
                String.format(
                        "%s, float32, SGD; PyTorch %s; ci/results/%s",
                        cards(), version("torch"), name),
                "PyTorch DDP",
                bars);
    }

    private List<GpuBenchRow> chartRows(Predicate<GpuBenchRow> accepted) {
        if (!report.get("benchmark").getAsString().startsWith("all_reduce and fused")) {
            return List.of();
        }
        Map<String, GpuBenchRow> rows = new LinkedHashMap<>();
        for (GpuBenchRow row : rows()) {
            if (shown(row) && torch(row) != null && baseline(row) != null && accepted.test(row)) {
                rows.put(operation(row) + size(row), row);
            }
        }
        return List.copyOf(rows.values());
    }

    private static boolean shown(GpuBenchRow row) {
        return row.bytes() != null
                ? CHART_BYTES.contains(row.bytes())
                : CHART_ROWS.contains(row.mnk().get(0));
    }

    /** Returns the rows of a report on GPUs. */
    List<GpuBenchRow> rows() {
        List<GpuBenchRow> rows = new ArrayList<>();
        for (JsonElement row : report.getAsJsonArray("rows")) {
            rows.add(new Gson().fromJson(row, GpuBenchRow.class));
        }
        return rows;
    }

    /** Returns the machine as in "4 × NVIDIA H200". */
    String cards() {
        JsonElement gpus = report.get("gpus");
        if (gpus == null) {
            return String.format(
                    "%s, %s cores", report.get("machine").getAsString(), report.get("cores"));
        }
        if (!gpus.isJsonArray()) {
            return gpus.getAsInt() + " GPUs";
        }
        JsonArray names = gpus.getAsJsonArray();
        return names.size() + " × " + names.get(0).getAsString();
    }

    /** Returns the report itself. */
    JsonObject report() {
        return report;
    }

    private String date() {
        return report.get("date").getAsString().substring(0, 10);
    }

    private String version(String library) {
        if (library.equals("torch")) {
            return report.get("torch").getAsString().replaceFirst("\\+.*", "");
        }
        return report.getAsJsonObject("versions").get(library).getAsString();
    }

    private String machine() {
        String commit = report.get("commit").getAsString();
        List<String> parts = new ArrayList<>();
        parts.add("**" + cards() + "**");
        if (report.has("ranks")) {
            parts.add("ranks: " + report.get("ranks").getAsString());
        }
        parts.add(date());
        parts.add("commit " + (commit.length() > 7 ? commit.substring(0, 7) : commit));
        for (Map.Entry<String, String> library :
                Map.of(
                                "a driver", "driver",
                                "b cuda", "CUDA",
                                "c nccl", "NCCL",
                                "d libtorch", "libtorch",
                                "e gloo", "Gloo of",
                                "f openmpi", "Open MPI")
                        .entrySet()
                        .stream()
                        .sorted(Map.Entry.comparingByKey())
                        .toList()) {
            String key = library.getKey().substring(2);
            if (report.getAsJsonObject("versions").has(key)) {
                parts.add(library.getValue() + " " + version(key));
            }
        }
        if (report.has("torch")) {
            parts.add("PyTorch " + report.get("torch").getAsString());
        }
        JsonArray options = report.getAsJsonArray("jvmOptions");
        if (options != null && !options.isEmpty()) {
            parts.add(
                    options.asList().stream()
                            .map(option -> "`" + option.getAsString() + "`")
                            .collect(Collectors.joining(" ")));
        }
        return String.join(" · ", parts) + String.format(" · [%s](../ci/results/%s)", name, name);
    }

    private String operators() {
        StringBuilder text = new StringBuilder();
        if (report.has("groupSeconds")) {
            text.append(
                    String.format(
                            Locale.ROOT,
                            "Creating the group took %.1f s on the slowest rank.%n%n",
                            report.get("groupSeconds").getAsDouble()));
        }
        List<List<String>> table = new ArrayList<>();
        table.add(
                List.of(
                        "operation",
                        "M, N, K or bytes",
                        "ours",
                        "NCCL",
                        "PyTorch",
                        "over NCCL",
                        "over PyTorch",
                        "limit",
                        "called: ours",
                        "called: NCCL",
                        "host"));
        for (GpuBenchRow row : rows()) {
            Double limit =
                    row.bytes() == null && row.mnk().size() == 3
                            ? max(
                                    row.replay().get(GpuBenchRow.MATMUL),
                                    row.replay().get(GpuBenchRow.COMMUNICATION))
                            : null;
            CallTimes called = row.columns().get(GpuBenchRow.OURS);
            CallTimes calledNccl = row.columns().get(GpuBenchRow.NCCL);
            table.add(
                    List.of(
                            operation(row),
                            size(row),
                            micros(ours(row)),
                            micros(baseline(row)),
                            micros(torch(row)),
                            ratio(baseline(row), ours(row)),
                            ratio(torch(row), ours(row)),
                            micros(limit),
                            micros(called == null ? null : called.gpuMicros()),
                            micros(calledNccl == null ? null : calledNccl.gpuMicros()),
                            micros(called == null ? null : called.hostMicros())));
        }
        return text.append(table(table)).toString();
    }

    /** Returns a table without the columns that have a title only. */
    private static String table(List<List<String>> rows) {
        List<List<String>> body = rows.subList(1, rows.size());
        int[] columns =
                IntStream.range(0, rows.get(0).size())
                        .filter(i -> body.stream().anyMatch(row -> !row.get(i).isEmpty()))
                        .toArray();
        StringBuilder text = new StringBuilder();
        for (List<String> row : rows) {
            String[] cells = IntStream.of(columns).mapToObj(row::get).toArray(String[]::new);
            text.append(text.isEmpty() ? header(cells) : line(cells));
        }
        return text.toString();
    }

    private static Double max(Double a, Double b) {
        return a == null || b == null ? null : Double.valueOf(Math.max(a, b));
    }

    private String generation() {
        StringBuilder text = new StringBuilder();
        JsonObject config = report.getAsJsonObject("config");
        text.append(
                String.format(
                        "A random Llama: %s layers, hidden size %s, vocabulary %s, %s.%n%n",
                        config.get("layers"),
                        config.get("hiddenSize"),
                        config.get("vocabularySize"),
                        config.get("type").getAsString().toLowerCase(Locale.ROOT)));
        text.append(
                header(
                        "sequences",
                        "step, µs",
                        "p90, µs",
                        "sampled, µs",
                        "tokens/s",
                        "reading the weights, µs",
                        "PyTorch, CUDA graph, µs"));
        for (JsonElement element : report.getAsJsonArray("steps")) {
            JsonObject step = element.getAsJsonObject();
            JsonObject torch = step.getAsJsonObject("torchMicros");
            text.append(
                    line(
                            step.get("batch").getAsString(),
                            whole(step, "medianMicros"),
                            whole(step, "p90Micros"),
                            whole(step, "drawnMedianMicros"),
                            whole(step, "tokensPerSecond"),
                            whole(step, "limitMicros"),
                            torch == null ? "" : whole(torch, "nccl")));
        }
        text.append('\n').append(header("clients", "requests", "errors", "tokens/s"));
        for (JsonElement element : report.getAsJsonArray("served")) {
            JsonObject served = element.getAsJsonObject();
            text.append(
                    line(
                            served.get("clients").getAsString(),
                            served.get("requests").getAsString(),
                            String.valueOf(served.getAsJsonArray("errors").size()),
                            whole(served, "tokensPerSecond")));
        }
        JsonObject first = report.getAsJsonObject("firstToken");
        JsonObject loading = report.getAsJsonObject("loading");
        text.append(
                String.format(
                        Locale.ROOT,
                        "%nFirst token of a prompt of %s tokens: %.1f ms. Loading: %.1f s; plain"
                                + " reading of the files: %.1f s.%n",
                        first.get("promptTokens"),
                        first.get("medianMicros").getAsDouble() / 1000,
                        loading.get("seconds").getAsDouble(),
                        loading.get("readSeconds").getAsDouble()));
        return text.toString();
    }

    private String training() {
        Map<String, String> names = new LinkedHashMap<>();
        names.put("P2P", "this project, engine PyTorch-P2P");
        names.put("TORCH_DDP", "PyTorch DDP");
        names.put("TORCH_DDP_TUNED", "PyTorch DDP, gradients as bucket views, fused SGD");
        names.put("DJL", "DJL's engine PyTorch");
        names.put("P2P_ALONE", "one GPU, engine PyTorch-P2P");
        names.put("TORCH_ALONE", "one GPU, PyTorch");
        names.put("DJL_ALONE", "one GPU, DJL's engine PyTorch");
        Map<Integer, Map<String, Double>> steps = steps();
        List<String> titles = new ArrayList<>(List.of("ms a step"));
        steps.keySet().forEach(rows -> titles.add(rows + " rows a rank"));
        StringBuilder text =
                new StringBuilder(
                        String.format(
                                "%s × (Linear %s → %s, ReLU, Linear %s → %s), float32, SGD.%n%n",
                                report.get("layers"),
                                report.get("width"),
                                report.get("hidden"),
                                report.get("hidden"),
                                report.get("width")));
        text.append(header(titles.toArray(String[]::new)));
        names.forEach(
                (who, words) -> {
                    List<String> cells = new ArrayList<>(List.of(words));
                    steps.values()
                            .forEach(
                                    row ->
                                            cells.add(
                                                    row.containsKey(who)
                                                            ? format("%.1f", row.get(who))
                                                            : ""));
                    text.append(line(cells.toArray(String[]::new)));
                });
        return text.toString();
    }

    /** Returns the milliseconds of a training step by rows a rank and contender. */
    private Map<Integer, Map<String, Double>> steps() {
        Map<Integer, Map<String, Double>> steps = new TreeMap<>();
        for (JsonElement element : report.getAsJsonArray("steps")) {
            JsonObject step = element.getAsJsonObject();
            steps.computeIfAbsent(step.get("rows").getAsInt(), rows -> new LinkedHashMap<>())
                    .put(step.get("who").getAsString(), step.get("milliseconds").getAsDouble());
        }
        return steps;
    }

    private String block() {
        double all = report.get("matmulsAndAttentionMilliseconds").getAsDouble();
        double block = report.get("blockMilliseconds").getAsDouble();
        return header("forward and backward", "ms")
                + line("the block", format("%.2f", block))
                + line("its matmuls and its attention", format("%.2f", all))
                + line(
                        "its matmuls",
                        format("%.2f", report.get("matmulsMilliseconds").getAsDouble()))
                + line("block / matmuls and attention", format("%.2f", block / all));
    }

    /** Returns the microseconds of all-reduces on the CPU by bytes and program. */
    private Map<Long, Map<String, Double>> medians() {
        JsonObject medians = report.getAsJsonObject("medians");
        Map<Long, Map<String, Double>> sizes = new TreeMap<>();
        for (String program : medians.keySet()) {
            for (JsonElement element : medians.getAsJsonArray(program)) {
                JsonObject row = element.getAsJsonObject();
                sizes.computeIfAbsent(row.get("size").getAsLong(), size -> new LinkedHashMap<>())
                        .put(program, row.get("micros").getAsDouble());
            }
        }
        return sizes;
    }

    private String hostAllReduce() {
        StringBuilder text =
                new StringBuilder(
                        header("bytes", "threads", "processes", "Open MPI", "Gloo", "over Gloo"));
        medians()
                .forEach(
                        (size, row) ->
                                text.append(
                                        line(
                                                bytes(size),
                                                micros(row.get("threads")),
                                                micros(row.get("processes")),
                                                micros(row.get("openmpi")),
                                                micros(row.get("gloo")),
                                                ratio(row.get("gloo"), row.get("processes")))));
        return text.toString();
    }

    private String coalesced() {
        StringBuilder text =
                new StringBuilder(
                        header("operation", "tensors", "bytes each", "separate", "coalesced"));
        for (JsonElement element : report.getAsJsonArray("rows")) {
            JsonObject row = element.getAsJsonObject();
            text.append(
                    line(
                            row.get("operation").getAsString().replace('_', '-'),
                            row.get("tensors").getAsString(),
                            bytes(row.get("bytes").getAsLong()),
                            micros(row.get("separateMicros").getAsDouble()),
                            micros(row.get("coalescedMicros").getAsDouble())));
        }
        return text.toString();
    }

    private String tests() {
        return header("found", "passed", "skipped", "failed")
                + line(
                        Stream.of("found", "succeeded", "skipped", "failed")
                                .map(key -> report.get(key).getAsString())
                                .toArray(String[]::new));
    }

    /** Returns the replayed time of ours; null if it was not measured. */
    static Double ours(GpuBenchRow row) {
        return row.replay().get(GpuBenchRow.OURS);
    }

    /** Returns NCCL's time, plain, for a fused operator with the matmul. */
    static Double baseline(GpuBenchRow row) {
        return row.replay().get(GpuBenchRow.NCCL);
    }

    /** Returns the time of PyTorch's fused operator or of its faster all-reduce. */
    static Double torch(GpuBenchRow row) {
        return GpuBenchTable.best(row.replay()::get);
    }

    /** Returns an operation in the words of the pages. */
    static String operation(GpuBenchRow row) {
        return switch (row.operation()) {
            case "allGatherMatmul" -> "all-gather + matmul";
            case "matmulReduceScatter" -> "matmul + reduce-scatter";
            case "allReduceRmsNorm" -> "all-reduce + RMSNorm";
            default -> "all-reduce";
        };
    }

    /** Returns M, N, K or the bytes. */
    static String size(GpuBenchRow row) {
        return row.bytes() == null ? row.size() : bytes(row.bytes());
    }

    private static String bytes(long bytes) {
        if (bytes >= 1 << 20) {
            return bytes / (1 << 20) + " MiB";
        }
        return bytes >= 1 << 10 ? bytes / (1 << 10) + " KiB" : bytes + " B";
    }

    static String micros(Double value) {
        if (value == null) {
            return "";
        }
        return format(value < 9.95 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f", value);
    }

    static String ratio(Double other, Double ours) {
        return other == null || ours == null ? "" : format("%.2f×", other / ours);
    }

    private static String whole(JsonObject object, String key) {
        return object.has(key) ? format("%,.0f", object.get(key).getAsDouble()) : "";
    }

    private static String format(String format, double value) {
        return String.format(Locale.ROOT, format, value);
    }

    static String header(String... titles) {
        return line(titles) + "|---".repeat(titles.length) + "|\n";
    }

    static String line(String... cells) {
        return Stream.of(cells).collect(Collectors.joining(" | ", "| ", " |\n"));
    }
}
