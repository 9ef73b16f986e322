// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import ai.djl.Device;
import ai.djl.huggingface.translator.TextEmbeddingTranslatorFactory;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.types.DataType;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.function.ToDoubleFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.engine.EmbeddingEngine;
import org.djlx.nativeops.NativeVersions;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/**
 * {@code bench-embed}: embeddings on the CPU beside DJL's PyTorch engine with a traced model, in
 * one process and with the same threads; or on a GPU beside sentence-transformers. Both take turns,
 * from texts to vectors.
 */
@Command(
        name = "bench-embed",
        description = {
            "Measures embeddings on the CPU, in turns with DJL's PyTorch engine with a traced"
                    + " model. OMP_NUM_THREADS sets the threads. Or, with --torch, on a GPU, in"
                    + " turns with sentence-transformers."
        })
final class EmbedBenchCommand extends ReportCommand {

    private static final Gson GSON = new Gson();
    private static final int MIXED = 0; // a length: texts have 8 to 256 tokens

    @Parameters(paramLabel = "DIR", description = "What peers/embed_model.py has written.")
    private Path directory;

    @Option(
            names = "--tokens",
            split = ",",
            description = "Tokens of a text; 0 for mixed lengths. Default: ${DEFAULT-VALUE}.")
    private int[] lengths = {16, 64, 128, 256, MIXED};

    @Option(names = "--texts", description = "Texts at a time. Default: ${DEFAULT-VALUE}.")
    private int count = 32;

    @Option(
            names = "--torch",
            paramLabel = "PYTHON",
            description = "A Python with sentence-transformers, such as python3.")
    private String python;

    @Option(
            names = "--type",
            description =
                    "With --torch, the type of weights and computation: ${COMPLETION-CANDIDATES};"
                            + " FLOAT32 if not given.")
    private DataType type;

    @Option(names = "--turns", description = "Default: ${DEFAULT-VALUE}.")
    private int turns = 9;

    /**
     * Medians of all texts; {@code other} is the peer. Speed-ups are medians of each turn's. {@code
     * tokens} is 0 for mixed lengths.
     */
    record Row(
            int tokens,
            double wallMillis,
            double cpuMillis,
            double otherWallMillis,
            double otherCpuMillis,
            double speedUp,
            double cpuSpeedUp,
            double maxDifference) {}

    /** Embeds texts and measures it. */
    private interface Peer {
        Times run(List<String> texts) throws Exception;
    }

    private record Times(double wall, double cpu, List<float[]> vectors) {

        static Times of(Callable<List<float[]>> embedding) throws Exception {
            OperatingSystemMXBean system =
                    (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            long cpu = system.getProcessCpuTime();
            long start = System.nanoTime();
            List<float[]> vectors = embedding.call();
            long end = System.nanoTime();
            return new Times(
                    (end - start) / 1e6, (system.getProcessCpuTime() - cpu) / 1e6, vectors);
        }

        static double median(List<Times> times, ToDoubleFunction<Times> of) {
            return Stats.median(times.stream().mapToDouble(of).toArray());
        }
    }

    @Override
    public Integer call() throws Exception {
        refuseIf(
                count < 1 || turns < 1 || IntStream.of(lengths).anyMatch(n -> n != MIXED && n < 3),
                "--texts and --turns must be 1 or more, --tokens 3 or more, or 0");
        refuseIf(
                python == null && type != null,
                "--type is for GPUs; give --torch PYTHON, too, or leave it out");
        if (python != null) {
            besideSentenceTransformers(type == null ? DataType.FLOAT32 : type);
        } else {
            besideDjl();
        }
        return 0;
    }

    private void besideDjl() throws Exception {
        begin("embeddings beside DJL's PyTorch engine", NativeVersions.query());
        Criteria<String, float[]> criteria =
                Criteria.builder()
                        .setTypes(String.class, float[].class)
                        .optModelPath(directory.resolve("traced"))
                        .optModelName("traced")
                        .optEngine("PyTorch")
                        .optTranslatorFactory(new TextEmbeddingTranslatorFactory())
                        .optArgument("includeTokenTypes", "false")
                        .build();
        try (EmbeddingModel model = EmbeddingModel.of(directory.toString());
                ZooModel<String, float[]> traced = criteria.loadModel();
                Predictor<String, float[]> predictor = traced.newPredictor()) {
            measure(model, texts -> Times.of(() -> predictor.batchPredict(texts)));
        }
    }

    private void besideSentenceTransformers(DataType type) throws Exception {
        begin("embeddings beside sentence-transformers", NativeVersions.query());
        List<String> arguments =
                List.of(directory.toString(), type.name().toLowerCase(Locale.ROOT));
        put("type", type);
        try (EmbeddingModel model =
                        EmbeddingEngine.builder()
                                .setDirectory(directory)
                                .optDevices(List.of(Device.gpu(0)))
                                .optDataType(type)
                                .build();
                TorchPeer peer =
                        TorchPeer.start(
                                python,
                                TorchPeer.script("embed_peer.py"),
                                arguments,
                                Duration.ofSeconds(60))) {
            put("sentenceTransformers", peer.description());
            measure(model, texts -> ask(peer, texts));
        }
    }

    private static Times ask(TorchPeer peer, List<String> texts) {
        JsonObject request = new JsonObject();
        request.add("texts", GSON.toJsonTree(texts));
        JsonObject answer = peer.ask(request);
        if (answer == null) {
            throw new IllegalStateException("sentence-transformers: " + peer.cause());
        }
        return new Times(
                answer.get("wallMillis").getAsDouble(),
                answer.get("cpuMillis").getAsDouble(),
                List.of(GSON.fromJson(answer.get("vectors"), float[][].class)));
    }

    private void measure(EmbeddingModel model, Peer peer) throws Exception {
        List<Row> rows = new ArrayList<>();
        put("texts", count);
        put("rows", rows);
        for (int length : lengths) {
            rows.add(measure(length, texts -> Times.of(() -> List.of(model.embed(texts))), peer));
            store();
            print("%s%n", rows.get(rows.size() - 1));
        }
    }

    private Row measure(int length, Peer ours, Peer peer) throws Exception {
        List<Times> own = new ArrayList<>();
        List<Times> others = new ArrayList<>();
        double difference = 0;
        Random random = new Random(length);
        for (int i = -3; i < turns; i++) { // DJL's executor compiles the trace in its first runs
            List<String> texts = texts(random, length);
            Times first = ours.run(texts);
            Times second = peer.run(texts);
            for (int k = 0; k < count; k++) {
                for (int e = 0; e < first.vectors.get(k).length; e++) {
                    float other = second.vectors.get(k)[e];
                    difference = Math.max(difference, Math.abs(first.vectors.get(k)[e] - other));
                }
            }
            if (i >= 0) {
                own.add(first);
                others.add(second);
            }
        }
        double[] walls = ratios(others, own, Times::wall);
        double[] cpus = ratios(others, own, Times::cpu);
        return new Row(
                length,
                Times.median(own, Times::wall),
                Times.median(own, Times::cpu),
                Times.median(others, Times::wall),
                Times.median(others, Times::cpu),
                Stats.median(walls),
                Stats.median(cpus),
                difference);
    }

    /** Returns the speed-up in each turn, which the load of the host changes less than times. */
    private static double[] ratios(
            List<Times> others, List<Times> own, ToDoubleFunction<Times> of) {
        return IntStream.range(0, own.size())
                .mapToDouble(i -> of.applyAsDouble(others.get(i)) / of.applyAsDouble(own.get(i)))
                .toArray();
    }

    /** Returns texts of words of two letters, which are a token each. */
    private List<String> texts(Random random, int length) {
        return IntStream.range(0, count)
                .mapToObj(
                        i ->
                                random.ints(length == MIXED ? random.nextInt(6, 255) : length - 2)
                                        .mapToObj(word -> letter(word) + letter(word / 26))
                                        .collect(Collectors.joining(" ")))
                .toList();
    }

    private static String letter(int number) {
        return String.valueOf((char) ('a' + Math.floorMod(number, 26)));
    }
}
