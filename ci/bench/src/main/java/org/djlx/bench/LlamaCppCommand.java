// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.pytorch.jni.JniUtils;
import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.fusedops.llm.engine.TextEngine;
import org.djlx.fusedops.llm.model.ModelConfig;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.samples.common.TextTable;
import org.djlx.samples.common.UsageException;
import org.djlx.samples.generate.ModelOptions;
import org.djlx.samples.generate.RandomLlama;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code bench-llama-cpp}: measures text generation on CPUs beside llama.cpp. */
@Command(
        name = "bench-llama-cpp",
        description = {
            "Measures a random Llama on CPUs, and then llama.cpp with the same weights, prompts and"
                + " number of threads: loading, decode steps, the time to the first token of a long"
                + " prompt, resident memory; compares the greedy tokens. OMP_NUM_THREADS sets the"
                + " threads of a rank."
        })
final class LlamaCppCommand extends ReportCommand {

    private static final Duration PATIENCE = Duration.ofMinutes(10);
    private static final int[] BATCHES = {1, 4};
    private static final int PROMPT = 32;
    private static final int TOKENS = 32;
    private static final int LONG_PROMPT = 512;
    private static final int FIRST_TOKEN_RUNS = 3;

    @Parameters(
            paramLabel = "SCRIPT",
            description = "llama_cpp_peer.mjs in a folder with gguf.mjs and node-llama-cpp.")
    private Path script;

    @Option(
            names = "--model",
            paramLabel = "SIZE",
            description = "Size of the model, one of ${COMPLETION-CANDIDATES}.")
    private RandomLlama.Size size = RandomLlama.Size.TINY;

    @Option(
            names = "--type",
            paramLabel = "TYPE",
            description = "FLOAT32 or BFLOAT16; that of the size if not given.")
    private ScalarType type;

    @Option(
            names = "--peer-type",
            paramLabel = "TYPE",
            description =
                    "Type of llama.cpp's weights, such as float32, which holds bfloat16 weights"
                            + " exactly; that of ours if not given.")
    private String peerType;

    @Option(
            names = "--jlama",
            paramLabel = "SCRIPT",
            description = "A script that runs JlamaPeer.java with the script's arguments.")
    private Path jlama;

    @Mixin private ModelOptions model;

    /**
     * The results of a program.
     *
     * @param program "ours" or the version of llama.cpp or Jlama
     * @param seconds the time until the model was ready; llama.cpp maps its file, and reads it
     *     later
     * @param steps greedy decode steps of 1 and 4 sequences
     * @param firstTokenMicros the time to the first token of 512
     * @param residentBytes the process's resident memory at the end
     * @param residentBefore that before the model was loaded: of this process, which has written
     *     the model; 0 for peers
     */
    record Row(
            String program,
            double seconds,
            List<StepBench.Steps> steps,
            double firstTokenMicros,
            long residentBytes,
            long residentBefore) {}

    @Override
    public Integer call() throws Exception {
        model.check();
        UsageException.refuseIf(model.isGpu(), "llama.cpp is measured on CPUs only");
        begin("text generation beside llama.cpp", NativeVersions.query());
        // On a disk, as a user's files, which are then in the page cache: programs map them.
        Path folder = Path.of(System.getProperty("java.io.tmpdir"));
        try (RandomLlama random = RandomLlama.write(size, type, folder)) {
            return measure(random.directory());
        }
    }

    private int measure(Path directory) throws Exception {
        ModelConfig config = ModelConfig.read(directory);
        String weights =
                switch (model.quantization()) {
                    case NONE -> config.type().name().toLowerCase(Locale.ROOT);
                    case INT8, FP8 -> "q8_0"; // CPUs refuse fp8 when the model is loaded.
                    case INT4 -> "q4_0";
                };
        weights = peerType == null ? weights : peerType;
        List<Row> rows = new ArrayList<>();
        List<Integer> tokens;
        int threads;
        int equalTokens;
        long before = residentBytes(ProcessHandle.current().pid());
        long start = System.nanoTime();
        try (TextEngine generator =
                model.load(directory, builder -> builder.optPrefixCaching(false))) {
            double seconds = (System.nanoTime() - start) / 1e9;
            threads = model.ranks().worldSize() * JniUtils.getNumThreads();
            StepBench bench = new StepBench(generator, config.vocabularySize());
            rows.add(row("ours", seconds, bench, ProcessHandle.current().pid(), before));
            tokens = tokens(bench);
        }
        List<String> arguments =
                List.of(directory.toString(), weights, "" + threads, "" + BATCHES[1]);
        try (TorchPeer peer = TorchPeer.start("node", script, arguments, PATIENCE)) {
            if (peer.version().isEmpty()) {
                progress("llama.cpp cannot be measured: %s", peer.cause());
                return 1;
            }
            StepBench bench = bench(peer, config);
            rows.add(peerRow("llama.cpp", peer, bench));
            List<Integer> theirs = tokens(bench);
            equalTokens =
                    (int)
                            IntStream.range(0, TOKENS)
                                    .takeWhile(i -> tokens.get(i).equals(theirs.get(i)))
                                    .count();
        }
        measureJlama(arguments, config, rows);
        report(config, weights, threads, rows, equalTokens);
        return 0;
    }

    /** Adds the row of Jlama, unless it is not asked for or cannot compute with this type. */
    private void measureJlama(List<String> arguments, ModelConfig config, List<Row> rows)
            throws IOException, InterruptedException, TimeoutException {
        if (jlama == null) {
            return;
        }
        try (TorchPeer peer = TorchPeer.start("bash", jlama, arguments, PATIENCE)) {
            if (peer.version().isEmpty()) {
                progress("Jlama is not measured: %s", peer.cause());
            } else {
                rows.add(peerRow("Jlama", peer, bench(peer, config)));
            }
        }
    }

    private static StepBench bench(TorchPeer peer, ModelConfig config) {
        return new StepBench(
                (prompts, count, sampled) -> answer(peer, prompts, count), config.vocabularySize());
    }

    private Row peerRow(String name, TorchPeer peer, StepBench bench)
            throws IOException, InterruptedException, TimeoutException {
        double seconds = peer.ready().get("seconds").getAsDouble();
        return row(name + " " + peer.version(), seconds, bench, peer.pid(), 0);
    }

    private static List<Integer> tokens(StepBench bench)
            throws InterruptedException, TimeoutException {
        return bench.run(1, PROMPT, TOKENS, false).tokens().get(0);
    }

    private static StepBench.Answers answer(TorchPeer peer, List<int[]> prompts, int tokens) {
        Gson gson = new Gson();
        Map<String, Object> request = Map.of("prompts", prompts, "tokens", tokens);
        JsonObject answer = peer.ask(gson.toJsonTree(request).getAsJsonObject());
        if (answer == null) {
            throw new IllegalStateException("the peer does not answer: " + peer.cause());
        }
        return gson.fromJson(answer, StepBench.Answers.class);
    }

    private Row row(String program, double seconds, StepBench bench, long pid, long residentBefore)
            throws IOException, InterruptedException, TimeoutException {
        // Until the JVM has compiled a step; of large models its own work is a small part.
        int warmUp = size.compareTo(RandomLlama.Size.LLAMA_1B) < 0 ? 512 : 128;
        bench.run(1, PROMPT, warmUp, false);
        List<StepBench.Steps> steps = new ArrayList<>();
        for (int batch : BATCHES) {
            steps.add(bench.steps(batch, PROMPT, TOKENS, false));
        }
        double first = bench.firstTokenMicros(LONG_PROMPT, FIRST_TOKEN_RUNS);
        return new Row(program, seconds, steps, first, residentBytes(pid), residentBefore);
    }

    private static long residentBytes(long pid) throws IOException {
        try (Stream<String> lines = Files.lines(Path.of("/proc/" + pid + "/status"))) {
            String kilobytes = lines.filter(line -> line.startsWith("VmRSS")).findFirst().get();
            return 1024 * Long.parseLong(kilobytes.replaceAll("\\D", ""));
        }
    }

    private void report(
            ModelConfig config, String weights, int threads, List<Row> rows, int equalTokens) {
        put("config", config);
        put("ranks", model.placement());
        put("threads", threads);
        put("weights", weights);
        put("programs", rows);
        put("equalTokens", equalTokens);
        store();
        TextTable table =
                new TextTable(
                        ("program,loading s,resident MB,before loading,tokens/s of 1,fastest,of"
                                        + " 4,fastest,first token of 512 ms")
                                .split(","));
        for (Row row : rows) {
            table.add(
                    row.program,
                    number("%.2f", row.seconds),
                    row.residentBytes / 1_000_000,
                    row.residentBefore / 1_000_000,
                    rate(0, row.steps.get(0).medianMicros()),
                    rate(0, row.steps.get(0).fastestMicros()),
                    rate(1, row.steps.get(1).medianMicros()),
                    rate(1, row.steps.get(1).fastestMicros()),
                    number("%.1f", row.firstTokenMicros / 1e3));
        }
        print(
                "%s %s, %s, %d threads compute%n%sgreedy tokens equal: %d of %d%n",
                size, weights, model.placement(), threads, table, equalTokens, TOKENS);
    }

    /** Returns the tokens/s of a step. */
    private static String rate(int index, double micros) {
        return number("%.1f", BATCHES[index] * 1e6 / micros);
    }
}
