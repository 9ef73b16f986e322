// SPDX-License-Identifier: Apache-2.0
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
import java.util.stream.Stream;
import org.djlx.bench.DecodeBenchCommand.FirstToken;
import org.djlx.bench.DecodeBenchCommand.Loading;
import org.djlx.bench.DecodeBenchCommand.StepRow;
import org.djlx.collectives.launch.cli.TextTable;

/**
 * One file of {@code ci/results} as Markdown: a line that names the machine and the versions, a
 * chart where PyTorch was measured, and a table.
 */
final class ResultsSection {

    /** The sizes that a chart shows: few enough to fit one screen. */
    private static final Set<Integer> CHART_ROWS = Set.of(512, 2048, 8192, 16384);

    private static final Set<Long> CHART_BYTES =
            Set.of(1L << 10, 1L << 16, 1L << 20, 1L << 24, 1L << 26);

    /** For each library, its key in a report's versions and its name on a page. */
    private static final List<String> LIBRARIES =
            List.of(
                    "driver driver",
                    "cuda CUDA",
                    "nccl NCCL",
                    "libtorch libtorch",
                    "gloo Gloo of",
                    "openmpi Open MPI");

    private static final String OPERATORS = "all_reduce and fused operators";
    private static final String TRAINING = "a data-parallel training step";
    private static final String HOST_ALL_REDUCE = "float32 all_reduce";
    private static final Gson GSON = new Gson();

    private final String name;
    private final JsonObject report;
    private final String benchmark;

    ResultsSection(String name, JsonObject report) {
        this.name = name;
        this.report = report;
        benchmark = report.get("benchmark").getAsString();
    }

    /** Returns the lines to put between a page's markers. */
    String markdown() {
        String table;
        if (benchmark.startsWith(OPERATORS)) {
            table = operators();
        } else if (benchmark.startsWith("text generation")) {
            table = generation();
        } else if (benchmark.startsWith(TRAINING)) {
            table = training();
        } else if (benchmark.startsWith("a transformer block")) {
            table = block();
        } else if (benchmark.startsWith(HOST_ALL_REDUCE)) {
            table = hostAllReduce();
        } else if (benchmark.equals("tests")) {
            table = tests();
        } else {
            throw new IllegalArgumentException(
                    name + ": no table is known for the benchmark: " + benchmark);
        }
        String chart =
                chart(row -> true).isEmpty()
                        ? ""
                        : "![Speed-up on %s](images/%s)\n\n".formatted(cards(), chartName());
        return machine() + "\n\n" + chart + table;
    }

    String chartName() {
        return name.replace(".json", ".svg");
    }

    /**
     * Draws the chart of the rows that are accepted; empty if the file has nothing to compare with.
     */
    Optional<String> chart(Predicate<GpuBenchRow> accepted) {
        List<SpeedUpChart.Bar> bars = new ArrayList<>();
        if (benchmark.startsWith(HOST_ALL_REDUCE)) {
            medians()
                    .forEach(
                            (size, row) ->
                                    bars.add(
                                            bar(
                                                    "all-reduce  " + bytes(size),
                                                    row.get("openmpi"),
                                                    row.get("processes"),
                                                    row.get("gloo"))));
            String subtitle =
                    String.format("%s, float32, two processes; ci/results/%s", cards(), name);
            return Optional.of(
                    SpeedUpChart.draw("Speed-up over Open MPI (1.0×)", subtitle, "Gloo", bars));
        }
        if (benchmark.startsWith(TRAINING)) {
            steps().forEach(
                            (rows, step) -> {
                                if (step.keySet().containsAll(List.of("DJL", "P2P", "TORCH_DDP"))) {
                                    bars.add(
                                            bar(
                                                    "step, " + rows + " rows a rank",
                                                    step.get("DJL"),
                                                    step.get("P2P"),
                                                    step.get("TORCH_DDP")));
                                }
                            });
            if (bars.isEmpty()) {
                return Optional.empty();
            }
            String title = "Speed-up over DJL's engine PyTorch (1.0×)";
            String subtitle =
                    String.format(
                            "%s, float32, SGD; PyTorch %s; ci/results/%s",
                            cards(), version("torch"), name);
            return Optional.of(SpeedUpChart.draw(title, subtitle, "PyTorch DDP", bars));
        }
        for (GpuBenchRow row : chartRows(accepted)) {
            String text = operation(row) + "  " + size(row);
            bars.add(bar(text, baseline(row), ours(row), torch(row)));
        }
        if (bars.isEmpty()) {
            return Optional.empty();
        }
        String title = "Speed-up over NCCL + matmul (1.0×)";
        String subtitle =
                String.format(
                        "%s, bfloat16, CUDA graph replay; NCCL %s, PyTorch %s; ci/results/%s",
                        cards(), version("nccl"), version("torch"), name);
        return Optional.of(SpeedUpChart.draw(title, subtitle, "PyTorch symmetric memory", bars));
    }

    private static SpeedUpChart.Bar bar(String name, double baseline, double ours, double other) {
        return new SpeedUpChart.Bar(name, baseline / ours, baseline / other);
    }

    private List<GpuBenchRow> chartRows(Predicate<GpuBenchRow> accepted) {
        if (!benchmark.startsWith(OPERATORS)) {
            return List.of();
        }
        Map<String, GpuBenchRow> rows = new LinkedHashMap<>();
        for (GpuBenchRow row : rows()) {
            boolean shown =
                    row.bytes() != null
                            ? CHART_BYTES.contains(row.bytes())
                            : CHART_ROWS.contains(row.mnk().get(0));
            if (shown && torch(row) != null && baseline(row) != null && accepted.test(row)) {
                rows.put(operation(row) + size(row), row);
            }
        }
        return List.copyOf(rows.values());
    }

    /** Reads a value of the report as the type that a benchmark wrote. */
    <T> T read(String key, Class<T> type) {
        return GSON.fromJson(report.get(key), type);
    }

    private String text(String key) {
        return report.get(key).getAsString();
    }

    private double number(String key) {
        return report.get(key).getAsDouble();
    }

    List<GpuBenchRow> rows() {
        return List.of(read("rows", GpuBenchRow[].class));
    }

    /** Returns the machine as in "4 × NVIDIA H200". */
    String cards() {
        JsonElement gpus = report.get("gpus");
        if (gpus == null) {
            return String.format("%s, %s cores", text("machine"), report.get("cores"));
        }
        if (!gpus.isJsonArray()) {
            return gpus.getAsInt() + " GPUs";
        }
        JsonArray names = gpus.getAsJsonArray();
        return names.size() + " × " + names.get(0).getAsString();
    }

    private String version(String library) {
        return library.equals("torch")
                ? text("torch").replaceFirst("\\+.*", "")
                : report.getAsJsonObject("versions").get(library).getAsString();
    }

    private String machine() {
        List<String> parts = new ArrayList<>();
        parts.add("**" + cards() + "**");
        if (report.has("ranks")) {
            parts.add("ranks: " + text("ranks"));
        }
        parts.add(text("date").substring(0, 10));
        // 7 digits; "-dirty" stays.
        parts.add("commit " + text("commit").replaceFirst("^(\\w{7})\\w*", "$1"));
        for (String library : LIBRARIES) {
            String[] words = library.split(" ", 2);
            if (report.getAsJsonObject("versions").has(words[0])) {
                parts.add(words[1] + " " + version(words[0]));
            }
        }
        // A run without PyTorch has the cause there.
        if (report.has("torch") && Character.isDigit(text("torch").charAt(0))) {
            parts.add("PyTorch " + text("torch"));
        }
        String[] options = read("jvmOptions", String[].class);
        if (options != null && options.length > 0) {
            parts.add("`" + String.join("` `", options) + "`");
        }
        return String.join(" · ", parts) + String.format(" · [%s](../ci/results/%s)", name, name);
    }

    private String operators() {
        TextTable table =
                new TextTable(
                        ("operation|M, N, K or bytes|ours|NCCL|PyTorch|over NCCL|over PyTorch|limit"
                                        + "|called: ours|called: NCCL|host|bare launch|host, in"
                                        + " bare launches|longest of calls 2 to 20")
                                .split("\\|"));
        for (GpuBenchRow row : rows()) {
            Double matmul = row.replay().get(GpuBenchRow.MATMUL);
            Double communication = row.replay().get(GpuBenchRow.COMMUNICATION);
            boolean isMatmul = row.bytes() == null && row.mnk().size() == 3;
            Double limit =
                    isMatmul && matmul != null && communication != null
                            ? Double.valueOf(Math.max(matmul, communication))
                            : null;
            CallTimes called = row.columns().get(GpuBenchRow.OURS);
            CallTimes nccl = row.columns().get(GpuBenchRow.NCCL);
            CallTimes launch = row.columns().get(GpuBenchRow.BARE_LAUNCH);
            table.add(
                    operation(row),
                    size(row),
                    micros(ours(row)),
                    micros(baseline(row)),
                    micros(torch(row)),
                    ratio(baseline(row), ours(row)),
                    ratio(torch(row), ours(row)),
                    micros(limit),
                    micros(called == null ? null : called.gpuMicros()),
                    micros(nccl == null ? null : nccl.gpuMicros()),
                    micros(called == null ? null : called.hostMicros()),
                    micros(launch == null ? null : launch.hostMicros()),
                    format("%.1f", row.launches()),
                    micros(called == null ? null : called.nextCallsMaxMicros()));
        }
        String group =
                report.has("groupSeconds")
                        ? format(
                                "Creating the group took %.1f s on the slowest rank.\n\n",
                                number("groupSeconds"))
                        : "";
        return group + table.markdownOfFilledColumns();
    }

    private String generation() {
        JsonObject config = report.getAsJsonObject("config");
        TextTable steps =
                new TextTable(
                        "sequences",
                        "step, µs",
                        "p90, µs",
                        "sampled, µs",
                        "tokens/s",
                        "reading the memory, µs",
                        "PyTorch, CUDA graph, µs",
                        "torch.compile, CUDA graph, µs");
        for (StepRow step : read("steps", StepRow[].class)) {
            Map<String, Double> torch = step.torchMicros();
            steps.add(
                    step.batch(),
                    whole(step.medianMicros()),
                    whole(step.p90Micros()),
                    whole(step.drawnMedianMicros()),
                    whole(step.tokensPerSecond()),
                    whole(step.limitMicros()),
                    whole(torch == null ? null : torch.getOrDefault("nccl", torch.get("alone"))),
                    whole(torch == null ? null : torch.get("compiled")));
        }
        TextTable clients = new TextTable("clients", "requests", "errors", "tokens/s");
        for (DecodeBench.Row served : read("served", DecodeBench.Row[].class)) {
            clients.add(
                    served.clients(),
                    served.requests(),
                    served.errors().size(),
                    whole(served.tokensPerSecond()));
        }
        FirstToken first = read("firstToken", FirstToken.class);
        Loading loading = read("loading", Loading.class);
        String quantization =
                report.has("quantization") ? text("quantization").toLowerCase(Locale.ROOT) : "none";
        boolean fp8Cache =
                config.has("kvCacheDtype")
                        && config.get("kvCacheDtype").getAsString().equals("FP8");
        return String.format(
                Locale.ROOT,
                "A random Llama: %s layers, hidden size %s, vocabulary %s, %s%s%s.%n%n%s%n%s%nFirst"
                        + " token of a prompt of %d tokens: %.1f ms. Loading: %.1f s; plain reading"
                        + " of the files: %.1f s.%n",
                // Older files have the number.
                config.has("layers")
                        ? config.get("layers")
                        : config.getAsJsonArray("layerConfigs").size(),
                config.get("hiddenSize"),
                config.get("vocabularySize"),
                config.get("type").getAsString().toLowerCase(Locale.ROOT),
                quantization.equals("none") ? "" : ", weights in " + quantization,
                fp8Cache ? ", keys and values in fp8" : "",
                steps.markdownOfFilledColumns(),
                clients.markdown(),
                first.promptTokens(),
                first.medianMicros() / 1000,
                loading.seconds(),
                loading.readSeconds());
    }

    private String training() {
        Map<String, String> names = new LinkedHashMap<>();
        String one = report.has("gpus") ? "one GPU" : "one rank";
        names.put("P2P", "this project, engine PyTorch-P2P");
        names.put("TORCH_DDP", "PyTorch DDP");
        names.put("TORCH_DDP_TUNED", "PyTorch DDP, gradients as bucket views, fused SGD");
        names.put("DJL", "DJL's engine PyTorch");
        names.put("P2P_SHARDED", "this project, fully sharded");
        names.put("TORCH_FSDP2", "PyTorch FSDP2");
        names.put("P2P_ALONE", one + ", engine PyTorch-P2P");
        names.put("P2P_RECOMPUTED", one + ", engine PyTorch-P2P, layers computed again");
        names.put("TORCH_ALONE", one + ", PyTorch");
        names.put("DJL_ALONE", one + ", DJL's engine PyTorch");
        Map<Integer, Map<String, Double>> steps = steps();
        List<String> titles = new ArrayList<>(List.of("ms a step"));
        steps.keySet().forEach(rows -> titles.add(rows + " rows a rank"));
        String width = text("width");
        String hidden = text("hidden");
        TextTable table = new TextTable(titles.toArray(String[]::new));
        names.forEach(
                (who, words) -> {
                    List<String> cells = new ArrayList<>(List.of(words));
                    steps.values().forEach(row -> cells.add(millis(row.get(who))));
                    if (steps.values().stream().anyMatch(row -> row.containsKey(who))) {
                        table.add(cells.toArray());
                    }
                });
        return String.format(
                "%s × (Linear %s → %s, ReLU, Linear %s → %s), float32, SGD.%n%n%s",
                text("layers"), width, hidden, hidden, width, table.markdown());
    }

    /** Returns the milliseconds of a training step by rows a rank and contender. */
    Map<Integer, Map<String, Double>> steps() {
        Map<Integer, Map<String, Double>> steps = new TreeMap<>();
        for (TrainBenchCommand.Step step : read("steps", TrainBenchCommand.Step[].class)) {
            steps.computeIfAbsent(step.rows(), rows -> new LinkedHashMap<>())
                    .put(step.who(), step.milliseconds());
        }
        return steps;
    }

    private String block() {
        double both = number(BlockBench.BOTH);
        double block = number(BlockBench.BLOCK);
        return new TextTable("forward and backward", "ms")
                .add("the block", format("%.2f", block))
                .add("its matmuls and its attention", format("%.2f", both))
                .add("its matmuls", format("%.2f", number(BlockBench.MATMULS)))
                .add("block / matmuls and attention", format("%.2f", block / both))
                .markdown();
    }

    /** Returns the microseconds of all-reduces on the CPU by bytes and program. */
    private Map<Long, Map<String, Double>> medians() {
        Map<Long, Map<String, Double>> sizes = new TreeMap<>();
        report.getAsJsonObject("medians")
                .asMap()
                .forEach(
                        (program, rows) -> {
                            for (BenchRow row : GSON.fromJson(rows, BenchRow[].class)) {
                                sizes.computeIfAbsent(row.size(), size -> new LinkedHashMap<>())
                                        .put(program, row.micros());
                            }
                        });
        return sizes;
    }

    private String hostAllReduce() {
        Map<String, String> names =
                Map.of("mpi", "backend mpi", "openmpi", "Open MPI", "gloo", "Gloo");
        List<String> programs =
                Stream.of("threads", "processes", "mpi", "openmpi", "gloo")
                        .filter(report.getAsJsonObject("medians")::has)
                        .toList();
        List<String> titles = new ArrayList<>(List.of("bytes"));
        programs.forEach(program -> titles.add(names.getOrDefault(program, program)));
        titles.add("over Gloo");
        TextTable table = new TextTable(titles.toArray(String[]::new));
        medians()
                .forEach(
                        (size, row) -> {
                            List<String> cells = new ArrayList<>(List.of(bytes(size)));
                            programs.forEach(program -> cells.add(micros(row.get(program))));
                            cells.add(ratio(row.get("gloo"), row.get("processes")));
                            table.add(cells.toArray());
                        });
        return table.markdown();
    }

    private String tests() {
        return new TextTable("found", "passed", "skipped", "failed")
                .add(text("found"), text("succeeded"), text("skipped"), text("failed"))
                .markdown();
    }

    /** Returns this project's replayed time; null if it was not measured. */
    static Double ours(GpuBenchRow row) {
        return row.replay().get(GpuBenchRow.OURS);
    }

    /** Returns NCCL's time without windows; for a fused operator, with the matmul. */
    static Double baseline(GpuBenchRow row) {
        return row.replay().get(GpuBenchRow.NCCL);
    }

    /** Returns the time of PyTorch's fused operator or of its faster all-reduce. */
    static Double torch(GpuBenchRow row) {
        return GpuBenchResults.best(row.replay()::get);
    }

    /** Returns the name of an operation on the pages. */
    static String operation(GpuBenchRow row) {
        String[] words = row.operation().split(" ", 2);
        String name =
                switch (words[0]) {
                    case "allGatherMatmul" -> "all-gather + matmul";
                    case "matmulReduceScatter" -> "matmul + reduce-scatter";
                    case "allReduceRmsNorm" -> "all-reduce + RMSNorm";
                    case "allGather" -> "all-gather";
                    case "reduceScatter" -> "reduce-scatter";
                    default -> "all-reduce";
                };
        return words.length == 1 ? name : name + ", " + words[1];
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
        return value == null
                ? ""
                : format(value < 9.95 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f", value);
    }

    private static String millis(Double value) {
        return format(value == null || value > 4.95 ? "%.1f" : "%.2f", value);
    }

    private static String ratio(Double other, Double ours) {
        return other == null || ours == null ? "" : format("%.2f×", other / ours);
    }

    private static String whole(Double value) {
        return format("%,.0f", value);
    }

    /** Formats a number; empty for null. */
    static String format(String format, Double value) {
        return value == null ? "" : String.format(Locale.ROOT, format, value);
    }
}
