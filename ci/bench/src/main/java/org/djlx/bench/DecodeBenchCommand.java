// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import ai.djl.Device;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.launch.cli.Gpus;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.files.RandomLlama;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.LoraConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.ops.ModelKernels;
import org.djlx.llm.server.GenerationServer;
import org.djlx.llm.server.ModelOptions;
import org.djlx.llm.server.ServerOptions;
import org.djlx.llm.server.TextApi;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.GpuRates;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code bench-decode}: measures loading and text generation of a model. */
@Command(
        name = "bench-decode",
        description = {
            "Measures a Llama, or a mixture of experts: loading, decode steps of full batches, the"
                + " time to the first token of a long prompt, and streamed answers to clients of"
                + " its HTTP server. Server and clients share a process and its cores."
        })
final class DecodeBenchCommand extends ReportCommand {

    private static final int FIRST_TOKEN_RUNS = 5;
    private static final int READ_BYTES = 16 << 20;

    @Parameters(
            arity = "0..1",
            paramLabel = "DIR",
            description =
                    "A Llama in Hugging Face's layout; if not given, a random one is written first"
                            + " and deleted at the end.")
    private Path given;

    @Option(
            names = "--model",
            paramLabel = "SIZE",
            description =
                    "Size of the random model, one of ${COMPLETION-CANDIDATES}; tiny if not given.")
    private RandomLlama.Size size;

    @Option(
            names = "--directory",
            paramLabel = "PARENT",
            description =
                    "Parent folder of the random model; if not given, /dev/shm or, with too little"
                            + " memory, the JVM's temporary folder.")
    private Path parent;

    @Mixin private ModelOptions model;

    @Option(
            names = "--batches",
            split = ",",
            defaultValue = "1,8,32",
            description = "Batch sizes of the decode steps.")
    private int[] batches;

    @Option(names = "--prompt-tokens", description = "Tokens of the prompts in a batch.")
    private int promptTokens = 512;

    @Option(names = "--long-prompt", description = "Tokens of the long prompt.")
    private int longPrompt = 4096;

    @Option(
            names = "--clients",
            split = ",",
            defaultValue = "1,64",
            description = "Numbers of concurrent clients.")
    private int[] clients;

    @Option(names = "--tokens", description = "Tokens generated for each prompt of a batch.")
    private int tokens = 64;

    @Option(names = "--answer-tokens", description = "Tokens of an answer to a client.")
    private int answerTokens = 64;

    @Option(names = "--requests", description = "Requests of each client.")
    private int requests = 8;

    @Option(
            names = "--adapters",
            description =
                    "Also measures decode steps with N random LoRA adapters, which the sequences of"
                            + " a batch use in turn; default none.")
    private int adapters;

    @Option(names = "--lora-rank", paramLabel = "R", description = "Rank of the LoRA adapters.")
    private int loraRank = 16;

    @Option(
            names = "--torch",
            paramLabel = "PYTHON",
            description =
                    "A Python with PyTorch, such as python3: measures the same model written with"
                            + " PyTorch's operators on GPUs, or reports why it cannot.")
    private String python;

    private GpuRates rates; // null on the CPU, or if unknown

    /**
     * The speed of loading: bytes of weights, seconds until the model was ready, and those of plain
     * reads of the files before, with a thread for each rank.
     */
    record Loading(long bytes, double seconds, double readSeconds) {}

    /**
     * Decode steps of a batch, greedy and sampled ({@code drawn}); with {@code --adapters} also
     * greedy ones with adapters. On GPUs also the time to read the weights, keys and values, and
     * PyTorch's steps.
     */
    record StepRow(
            int batch,
            int promptTokens,
            int newTokens,
            int steps,
            double medianMicros,
            double p90Micros,
            double tokensPerSecond,
            double drawnMedianMicros,
            Double adaptedMedianMicros,
            Double limitMicros,
            Map<String, Double> torchMicros) {}

    /** The time to the first token; on GPUs also the time of PyTorch's matmuls for the prompt. */
    record FirstToken(int promptTokens, double medianMicros, Double torchMatmulMicros) {}

    @Override
    public Integer call() throws Exception {
        model.check();
        refuseIf(
                IntStream.of(tokens, answerTokens, requests, promptTokens, longPrompt)
                                .anyMatch(n -> n < 1)
                        || IntStream.of(batches).anyMatch(n -> n < 1)
                        || IntStream.of(clients).anyMatch(n -> n < 1),
                "--tokens, --answer-tokens, --requests, --prompt-tokens, --long-prompt, --batches"
                        + " and --clients must be 1 or more");
        refuseIf(
                adapters < 0 || loraRank < 1 || loraRank > LoraConfig.MAX_RANK,
                "--adapters must be 0 or more, and --lora-rank 1 to %d, not %d and %d"
                        .formatted(LoraConfig.MAX_RANK, adapters, loraRank));
        refuseIf(
                given != null && (size != null || parent != null),
                "--model and --directory are for random models; leave them out with %s"
                        .formatted(given));
        if (given != null) {
            return measure(given);
        }
        refuseIf(
                model.ranks().areProcesses(),
                "ranks that are processes need a model that exists: give DIR");
        RandomLlama.Size written = size == null ? RandomLlama.Size.TINY : size;
        check(written.config());
        try (RandomLlama random = RandomLlama.write(written, null, parent)) {
            return measure(random.directory());
        }
    }

    private int measure(Path directory) throws Exception {
        int ranks = model.ranks().worldSize();
        begin("text generation", NativeVersions.query());
        List<Path> files;
        try (Stream<Path> all = Files.list(directory)) {
            files = all.filter(file -> file.toString().endsWith(".safetensors")).toList();
        }
        long bytes = 0;
        for (Path file : files) {
            bytes += Files.size(file);
        }
        ModelConfig config = ModelConfig.read(directory);
        check(config);
        double readSeconds = readSeconds(files, ranks);
        rates = model.isGpu() ? rates() : null; // before the model takes the memory
        List<StepRow> steps;
        FirstToken first;
        List<DecodeBench.Row> served;
        long start = System.nanoTime();
        try (TextEngine generator =
                model.load(directory, builder -> builder.optPrefixCaching(false))) {
            if (generator.isFollower()) {
                generator.awaitEnd();
                return 0;
            }
            report(
                    generator.config(),
                    new Loading(bytes, (System.nanoTime() - start) / 1e9, readSeconds));
            steps = steps(generator, ranks, loadAdapters(generator, directory));
            first = firstToken(generator);
            served = serve(directory, generator);
        }
        if (python != null) {
            compare(config, ranks, steps, first);
        }
        printTables();
        return served.stream().allMatch(row -> row.errors().isEmpty()) ? 0 : 1;
    }

    /** Refuses options that do not fit the model, before it is written or read. */
    private void check(ModelConfig config) {
        refuseIf(
                python != null && config.hasExperts(),
                "--torch compares with models without experts; leave it out");
        ModelKernels.check(
                config,
                model.isGpu() ? Device.gpu(0) : Device.cpu(),
                model.ranks().worldSize(),
                model.quantization());
    }

    /** Returns the rates of the first GPU; null if they cannot be measured. */
    private static GpuRates rates() {
        try (CudaDevice device = CudaDevice.open(Device.gpu(0))) {
            return GpuRates.of(device).orElse(null);
        }
    }

    /** Returns the mean number of tokens of a sequence in the measured steps. */
    private int meanContext() {
        return promptTokens + tokens / 2;
    }

    /**
     * Returns the time to read the weights, keys and values of a step; null on the CPU, or if it is
     * unknown.
     */
    private Double limit(ModelConfig config, int ranks, int batch) {
        long cached = (long) batch * meanContext();
        long bytes =
                stepBytes(config, ranks, model.quantization(), batch)
                        + KvCache.byteSize(config, ranks, cached);
        return rates == null ? null : bytes / rates.gigabytesPerSecond() / 1e3;
    }

    /**
     * Reads files in parallel, one at a time per thread; returns the seconds, a lower bound of
     * loading.
     */
    private static double readSeconds(List<Path> files, int threads)
            throws InterruptedException, ExecutionException {
        ExecutorService readers = Executors.newFixedThreadPool(threads);
        try {
            List<Callable<Void>> reads = files.stream().map(DecodeBenchCommand::read).toList();
            long start = System.nanoTime();
            for (Future<Void> read : readers.invokeAll(reads)) {
                read.get();
            }
            return (System.nanoTime() - start) / 1e9;
        } finally {
            readers.shutdownNow();
        }
    }

    private static Callable<Void> read(Path file) {
        return () -> {
            ByteBuffer chunk = ByteBuffer.allocateDirect(READ_BYTES);
            try (FileChannel channel = FileChannel.open(file)) {
                while (channel.read(chunk) >= 0) {
                    chunk.clear();
                }
            }
            return null;
        };
    }

    /**
     * Returns the bytes of weights that a rank reads in a decode step: all except the embedding,
     * and of experts as many as {@code batch} tokens choose on average, if each token chooses at
     * random.
     */
    static long stepBytes(ModelConfig config, int ranks, Quantization quantization, int batch) {
        long hidden = config.hiddenSize();
        long heads = config.heads() / ranks + Math.max(1, config.kvHeads() / ranks);
        double layers = 0; // rows of the size `hidden`
        for (LayerConfig layer : config.layerConfigs()) {
            LayerConfig.Mlp mlp = layer.mlp();
            double mlps = 1;
            if (mlp.experts() != null) {
                int count = mlp.experts().count();
                mlps = count * (1 - Math.pow(1 - mlp.experts().chosen() / (double) count, batch));
                layers += count; // the router
            }
            layers += 2 * heads * config.headSize() + mlps * (3 * mlp.intermediateSize() / ranks);
        }
        long output = hidden * ((config.vocabularySize() + ranks - 1) / ranks);
        long norms = hidden * (2L * config.layers() + 1);
        double bits =
                switch (quantization) {
                    case NONE -> 8 * config.type().itemSize();
                    case FP8, INT8 -> 8;
                    case INT4 -> 4.25;
                };
        double weights = (hidden * layers + output) * bits / 8;
        return (long) weights + norms * config.type().itemSize();
    }

    private void report(ModelConfig config, Loading loading) {
        int ranks = model.ranks().worldSize();
        if (model.isGpu()) {
            put("gpus", Gpus.names().subList(0, ranks));
            put("memoryGigabytesPerSecond", rates == null ? null : rates.gigabytesPerSecond());
        }
        put("config", config);
        put("ranks", model.placement());
        put("quantization", model.quantization());
        put("loading", loading);
        print(
                "%s%n%d bytes loaded in %.2f s, %.2f GB/s; read in %.2f s, %.2f GB/s: %.2f of that"
                        + " speed%n",
                model.placement(),
                loading.bytes,
                loading.seconds,
                loading.bytes / loading.seconds / 1e9,
                loading.readSeconds,
                loading.bytes / loading.readSeconds / 1e9,
                loading.readSeconds / loading.seconds);
        store();
    }

    /** Loads adapters from the same files, and returns their names. */
    private List<String> loadAdapters(TextEngine generator, Path directory) throws IOException {
        if (adapters == 0) {
            return List.of();
        }
        put("adapters", adapters);
        put("loraRank", loraRank);
        try (RandomAdapter adapter = RandomAdapter.write(directory, loraRank)) {
            for (int i = 0; i < adapters; i++) {
                generator.loadAdapter("adapter-" + i, adapter.directory());
            }
        }
        return generator.adapters();
    }

    private List<StepRow> steps(TextEngine generator, int ranks, List<String> adapterNames)
            throws InterruptedException, TimeoutException {
        int longest = Math.max(longPrompt + 1, promptTokens + tokens);
        refuseIf(
                longest > generator.maxLength(),
                ("--long-prompt or --prompt-tokens and --tokens need %d tokens, but the longest"
                                + " sequence of this model is set to %d")
                        .formatted(longest, generator.maxLength()));
        int vocabulary = generator.config().vocabularySize();
        StepBench bench = new StepBench(generator, vocabulary, List.of());
        StepBench adapted = new StepBench(generator, vocabulary, adapterNames);
        List<StepRow> rows = new ArrayList<>();
        put("steps", rows);
        for (int batch : batches) {
            Double limit = limit(generator.config(), ranks, batch);
            StepBench.Steps greedy = bench.steps(batch, promptTokens, tokens, false);
            StepBench.Steps sampled = bench.steps(batch, promptTokens, tokens, true);
            Double adaptedMicros =
                    adapterNames.isEmpty()
                            ? null
                            : adapted.steps(batch, promptTokens, tokens, false).medianMicros();
            rows.add(
                    new StepRow(
                            batch,
                            promptTokens,
                            tokens,
                            greedy.steps(),
                            greedy.medianMicros(),
                            greedy.p90Micros(),
                            greedy.tokensPerSecond(),
                            sampled.medianMicros(),
                            adaptedMicros,
                            limit,
                            new LinkedHashMap<>()));
            store();
        }
        return rows;
    }

    private FirstToken firstToken(TextEngine generator)
            throws InterruptedException, TimeoutException {
        StepBench bench = new StepBench(generator, generator.config().vocabularySize(), List.of());
        double micros = bench.firstTokenMicros(longPrompt, FIRST_TOKEN_RUNS);
        FirstToken first = new FirstToken(longPrompt, micros, null);
        put("firstToken", first);
        store();
        return first;
    }

    private List<DecodeBench.Row> serve(Path directory, TextEngine generator)
            throws IOException, InterruptedException, ExecutionException {
        Duration limit = Duration.ofMinutes(10);
        ServerOptions options =
                new ServerOptions(
                        "127.0.0.1",
                        0,
                        null,
                        List.of(),
                        1 << 20,
                        1 << 26,
                        1024,
                        limit,
                        limit,
                        Duration.ZERO);
        TextApi api = new TextApi("bench", generator, ChatTemplate.of(directory));
        List<DecodeBench.Row> rows = new ArrayList<>();
        try (GenerationServer server = new GenerationServer(api, generator, options)) {
            DecodeBench bench = new DecodeBench(server.port(), answerTokens);
            for (int count : clients) {
                bench.run(count, 1); // Uncounted: the JVM compiles.
                rows.add(bench.run(count, requests));
            }
        }
        put("servedTokens", answerTokens);
        put("served", rows);
        store();
        rows.stream()
                .flatMap(row -> row.errors().stream())
                .distinct()
                .forEach(error -> progress("%s", error));
        return rows;
    }

    /** Measures PyTorch once the generator is closed, and adds its times to the report. */
    private void compare(ModelConfig config, int ranks, List<StepRow> steps, FirstToken first) {
        DecodePeer.Result result =
                DecodePeer.run(
                        python,
                        TorchPeer.script("decode_peer.py"),
                        DecodePeer.arguments(config, ranks, meanContext(), batches, longPrompt));
        put("torch", result.torch());
        put("torchNotes", result.notes());
        steps.forEach(
                row ->
                        row.torchMicros.putAll(
                                result.stepMicros().getOrDefault(row.batch, Map.of())));
        put(
                "firstToken",
                new FirstToken(first.promptTokens, first.medianMicros, result.matmulMicros()));
        store();
        result.notes().forEach(note -> progress("PyTorch: %s", note));
    }
}
