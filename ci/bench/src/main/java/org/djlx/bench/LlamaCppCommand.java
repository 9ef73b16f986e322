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
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.launch.cli.UsageException;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.files.RandomLlama;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.server.ModelOptions;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.torch.ScalarType;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/**
 * {@code bench-llama-cpp}: measures text generation on CPUs beside llama.cpp and Jlama. All load
 * the model, one after the other. Then they take turns, because the speed of a virtual machine's
 * memory changes within a minute.
 */
@Command(
        name = "bench-llama-cpp",
        description = {
            "Measures a random Llama on CPUs, in turns with llama.cpp with the same weights,"
                    + " prompts and number of threads: loading, decode steps, the time to the first"
                    + " token of a long prompt, resident memory; compares the greedy tokens."
                    + " OMP_NUM_THREADS sets the threads of a rank."
        })
final class LlamaCppCommand extends ReportCommand {

    private static final Duration PATIENCE = Duration.ofMinutes(10);
    private static final int[] BATCHES = {1, 4};
    private static final int PROMPT = 32;
    private static final int TOKENS = 32;
    private static final int LONG_PROMPT = 512;
    private static final int TURNS = 3; // the uncounted first one not included

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
            names = "--gguf",
            paramLabel = "TYPE",
            description = "Both read a GGUF file of this type: q8_0, q4_0 or q4_k_m.")
    private String ggufType;

    @Option(
            names = "--jlama",
            paramLabel = "SCRIPT",
            description = "A script that runs JlamaPeer.java with the script's arguments.")
    private Path jlama;

    @Mixin private ModelOptions model;

    /**
     * The results of a program: greedy decode steps of 1 and 4 sequences, and the median time to
     * the first token of 512. Resident memory of its process is at the end, and before the model
     * was loaded.
     *
     * @param seconds the time until the model was ready; llama.cpp maps its file, and reads it
     *     later
     * @param residentBefore of this process, which has written the model; 0 for peers
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
            if (ggufType == null) {
                return measure(random.directory());
            }
            Path file = random.directory().resolve("random.gguf");
            Process writer =
                    new ProcessBuilder(
                                    "node",
                                    script.resolveSibling("gguf.mjs").toString(),
                                    random.directory().toString(),
                                    file.toString(),
                                    ggufType)
                            .inheritIO()
                            .start();
            UsageException.refuseIf(
                    writer.waitFor() != 0, "gguf.mjs cannot write the type " + ggufType);
            return measure(file);
        }
    }

    /** A program whose model is loaded. */
    private record Loaded(
            String name, double seconds, StepBench bench, long pid, long residentBefore) {}

    private int measure(Path directory) throws Exception {
        ModelConfig config = ModelConfig.read(GgufDirectory.of(directory));
        String weights =
                switch (model.quantization()) {
                    case NONE -> config.type().name().toLowerCase(Locale.ROOT);
                    case INT8, FP8 -> "q8_0"; // CPUs refuse fp8 when the model is loaded.
                    case INT4 -> "q4_0";
                };
        weights = ggufType != null ? ggufType : peerType == null ? weights : peerType;
        long before = residentBytes(ProcessHandle.current().pid());
        long start = System.nanoTime();
        try (TextEngine generator =
                model.load(directory, builder -> builder.optPrefixCaching(false))) {
            double seconds = (System.nanoTime() - start) / 1e9;
            int threads = model.ranks().worldSize() * JniUtils.getNumThreads();
            StepBench bench = new StepBench(generator, config.vocabularySize(), List.of());
            Loaded ours = new Loaded("ours", seconds, bench, ProcessHandle.current().pid(), before);
            List<String> arguments =
                    List.of(directory.toString(), weights, "" + threads, "" + BATCHES[1]);
            try (TorchPeer llamaCpp = TorchPeer.start("node", script, arguments, PATIENCE);
                    TorchPeer jlamaPeer =
                            jlama == null
                                    ? null
                                    : TorchPeer.start("bash", jlama, arguments, PATIENCE)) {
                if (llamaCpp.version().isEmpty()) {
                    progress("llama.cpp cannot be measured: %s", llamaCpp.cause());
                    return 1;
                }
                List<Loaded> programs = new ArrayList<>();
                programs.add(ours);
                programs.add(loaded("llama.cpp", llamaCpp, config));
                if (jlamaPeer != null && jlamaPeer.version().isEmpty()) {
                    progress("Jlama is not measured: %s", jlamaPeer.cause());
                } else if (jlamaPeer != null) {
                    programs.add(loaded("Jlama", jlamaPeer, config));
                }
                int equalTokens = equalTokens(programs.get(0).bench, programs.get(1).bench);
                report(config, weights, threads, measure(programs), equalTokens);
            }
        }
        return 0;
    }

    /** Returns how many greedy tokens are equal, until the first one that is not. */
    private static int equalTokens(StepBench first, StepBench second)
            throws InterruptedException, TimeoutException {
        List<Integer> tokens = tokens(first);
        List<Integer> others = tokens(second);
        return (int)
                IntStream.range(0, TOKENS)
                        .takeWhile(i -> tokens.get(i).equals(others.get(i)))
                        .count();
    }

    private List<Row> measure(List<Loaded> programs)
            throws IOException, InterruptedException, TimeoutException {
        // Until the JVM has compiled a step; of large models its own work is a small part.
        int warmUp = size.compareTo(RandomLlama.Size.LLAMA_1B) < 0 ? 512 : 128;
        for (Loaded program : programs) {
            program.bench.run(1, PROMPT, warmUp, false);
        }
        List<List<StepBench.Steps>> steps = new ArrayList<>(); // of batches, then of programs
        for (int batch : BATCHES) {
            steps.add(
                    inTurns(programs, bench -> bench.micros(batch, PROMPT, TOKENS, false)).stream()
                            .map(micros -> StepBench.Steps.of(batch, micros))
                            .toList());
        }
        List<double[]> first =
                inTurns(programs, bench -> new double[] {bench.firstTokenMicros(LONG_PROMPT)});
        List<Row> rows = new ArrayList<>();
        for (int i = 0; i < programs.size(); i++) {
            Loaded program = programs.get(i);
            int index = i;
            rows.add(
                    new Row(
                            program.name,
                            program.seconds,
                            steps.stream().map(ofAll -> ofAll.get(index)).toList(),
                            Stats.median(first.get(i)),
                            residentBytes(program.pid),
                            program.residentBefore));
        }
        return rows;
    }

    private interface Turn {

        double[] measure(StepBench bench) throws InterruptedException, TimeoutException;
    }

    /** Returns the measurements of each program; the first turn is not counted. */
    private static List<double[]> inTurns(List<Loaded> programs, Turn turn)
            throws InterruptedException, TimeoutException {
        List<DoubleStream.Builder> all =
                Stream.generate(DoubleStream::builder).limit(programs.size()).toList();
        for (int i = -1; i < TURNS; i++) {
            for (int k = 0; k < programs.size(); k++) {
                double[] micros = turn.measure(programs.get(k).bench);
                if (i >= 0) {
                    Arrays.stream(micros).forEach(all.get(k)::add);
                }
            }
        }
        return all.stream().map(micros -> micros.build().toArray()).toList();
    }

    private static StepBench bench(TorchPeer peer, ModelConfig config) {
        return new StepBench(
                (prompts, count, sampled) -> answer(peer, prompts, count), config.vocabularySize());
    }

    private static Loaded loaded(String name, TorchPeer peer, ModelConfig config) {
        double seconds = peer.ready().get("seconds").getAsDouble();
        return new Loaded(name + " " + peer.version(), seconds, bench(peer, config), peer.pid(), 0);
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
        print(
                "%s %s, %s, %d threads compute; greedy tokens equal: %d of %d%n",
                size, weights, model.placement(), threads, equalTokens, TOKENS);
        printTables();
    }
}
