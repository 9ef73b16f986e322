// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.engine.Engine;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.soak.Soak;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.model.EncoderFiles;
import org.djlx.llm.model.EncoderReference;
import org.djlx.llm.model.LlamaConfig;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.LlamaReference;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * Random Llamas and encoders on CPUs equal references in float64: sizes, types, ranks, batches and
 * instruction sets, each at random.
 */
@Tag("soak")
class RandomModelsSoakTest {

    /** Largest errors of log-probabilities, relative to the largest logit and 1. */
    private static final Map<ScalarType, Double> ERRORS =
            Map.of(
                    ScalarType.FLOAT32, 1e-5,
                    ScalarType.FLOAT16, 0.003,
                    ScalarType.BFLOAT16, 0.03);

    private static final int ENCODER_TOKENS = 58; // of a vocabulary of 60, without two markers
    private static final List<String> POOLINGS =
            List.of(
                    "cls_token",
                    "mean_tokens",
                    "max_tokens",
                    "weightedmean_tokens",
                    "lasttoken",
                    "mean_sqrt_len_tokens");

    @TempDir private Path directory;

    @BeforeAll
    static void loadLibtorch() {
        Engine.getEngine("PyTorch"); // CpuKernels need it
    }

    @AfterEach
    void useAllInstructions() {
        CpuKernels.useAmx(true);
    }

    /** Returns 1 to {@code few} in half of the calls, 1 to {@code many} in the others. */
    private static int size(Random random, int few, int many) {
        return 1 + random.nextInt(random.nextBoolean() ? few : many);
    }

    private static <T> T oneOf(Random random, List<T> all) {
        return all.get(random.nextInt(all.size()));
    }

    @Test
    void llamasEqualTheReference() throws InterruptedException {
        Soak.run(
                "random Llamas",
                soak -> {
                    while (soak.nextRound()) {
                        Random random = new Random(soak.roundSeed());
                        int ranks = oneOf(random, List.of(1, 1, 2, 3, 4));
                        LlamaConfig sizes = llama(random, ranks);
                        ScalarType type = oneOf(random, ERRORS.keySet().stream().sorted().toList());
                        Path model = Files.createTempDirectory(directory, "llama");
                        LlamaFiles.write(model, sizes.type(type).build(), random.nextLong());
                        soak.add("log-probabilities", checkLlama(model, random, type, ranks));
                        soak.add(type.toString(), 1);
                    }
                });
    }

    private static LlamaConfig llama(Random random, int ranks) {
        int kvHeads = 1 + random.nextInt(4);
        int heads = kvHeads * (1 + random.nextInt(4)) * ranks;
        // A rank has whole heads of keys and values, or shares one with other ranks.
        kvHeads = random.nextBoolean() ? kvHeads * ranks : ranks % kvHeads == 0 ? kvHeads : 1;
        return LlamaConfig.builder()
                .vocabulary(7 + size(random, 50, 900))
                .hidden(size(random, 40, 300))
                .heads(heads, kvHeads, 2 * size(random, 8, 40))
                .maxLength(256)
                .tied(random.nextBoolean())
                .endTokens(7)
                .layers(1 + random.nextInt(2), ranks * size(random, 40, 400));
    }

    /** Returns how many log-probabilities were compared. */
    private static int checkLlama(Path model, Random random, ScalarType type, int ranks)
            throws Exception {
        LlamaReference reference = new LlamaReference(model);
        int vocabulary = reference.logits(new int[] {0})[0].length;
        TextEngine.Builder builder =
                TextEngine.builder()
                        .setDirectory(model)
                        .optRanks(ranks)
                        .optPrefillTokens(1 + random.nextInt(90))
                        .optPrefixCaching(random.nextBoolean())
                        .optMaxRunning(1 + random.nextInt(5))
                        .optBatchInvariant(random.nextInt(4) == 0);
        int compared = 0;
        try (TextEngine engine = builder.build()) {
            List<int[]> prompts = new ArrayList<>();
            List<Generation> generations = new ArrayList<>();
            for (int i = random.nextInt(5); i >= 0; i--) {
                int[] own = random.ints(size(random, 6, 90), 0, vocabulary).toArray();
                boolean same = !prompts.isEmpty() && random.nextInt(3) == 0;
                prompts.add(same ? prompts.get(0) : own);
                GenerationRequest.Builder request =
                        GenerationRequest.builder()
                                .setPromptTokens(prompts.get(prompts.size() - 1))
                                .optIgnoreEndOfText(true)
                                .optMaxTokens(1 + random.nextInt(12))
                                .optTopLogProbabilities(3);
                generations.add(engine.submit(request.build()));
            }
            for (int i = 0; i < prompts.size(); i++) {
                List<GeneratedPiece> pieces = generations.get(i).await(Duration.ofMinutes(1));
                int[] tokens =
                        IntStream.concat(
                                        Arrays.stream(prompts.get(i)),
                                        pieces.stream().mapToInt(GeneratedPiece::token))
                                .toArray();
                double[][] logits = reference.logits(tokens);
                for (int k = 0; k < pieces.size(); k++) {
                    double[] expected = logits[prompts.get(i).length + k - 1];
                    compared += checkPiece(pieces.get(k), expected, ERRORS.get(type));
                }
            }
        }
        return compared;
    }

    private static int checkPiece(GeneratedPiece piece, double[] logits, double most) {
        double largest = Arrays.stream(logits).max().orElseThrow();
        double sum = Arrays.stream(logits).map(logit -> Math.exp(logit - largest)).sum();
        double scale = 1 + Arrays.stream(logits).map(Math::abs).max().orElseThrow();
        piece.topLogProbabilities()
                .forEach(
                        top ->
                                assertEquals(
                                        logits[top.token()] - largest - Math.log(sum),
                                        top.logProbability(),
                                        most * scale));
        return piece.topLogProbabilities().size();
    }

    @Test
    void encodersEqualTheReference() throws InterruptedException {
        Soak.run(
                "random encoders",
                soak -> {
                    while (soak.nextRound()) {
                        Random random = new Random(soak.roundSeed());
                        String type = oneOf(random, EncoderFiles.MODEL_TYPES);
                        String pooling = oneOf(random, POOLINGS);
                        int heads = 1 + random.nextInt(5);
                        EncoderFiles.Sizes sizes =
                                new EncoderFiles.Sizes(
                                        heads * 2 * size(random, 10, 40),
                                        heads,
                                        size(random, 60, 1500),
                                        1 + random.nextInt(4),
                                        2 * (1 + random.nextInt(20)));
                        useInstructions(random.nextInt(3));
                        Path model = Files.createTempDirectory(directory, "encoder");
                        EncoderFiles.write(model, type, "", pooling, sizes);
                        soak.add("texts", checkEncoder(model, pooling, random));
                        soak.add(type, 1);
                    }
                });
    }

    private static void useInstructions(int level) {
        if (level == 0) {
            CpuKernels.useAvx512(false);
        } else {
            CpuKernels.useAmx(level == 2);
        }
    }

    /** Returns how many texts were compared. */
    private static int checkEncoder(Path model, String pooling, Random random) throws Exception {
        EncoderReference reference = new EncoderReference(model, "");
        boolean sameLength = random.nextInt(3) == 0;
        int length = 1 + random.nextInt(150);
        List<int[]> texts =
                Stream.generate(() -> sameLength ? length : size(random, 20, 150))
                        .limit(1 + random.nextInt(12))
                        .map(tokens -> random.ints(tokens, 0, ENCODER_TOKENS).toArray())
                        .toList();
        try (EmbeddingModel own =
                EmbeddingEngine.builder()
                        .setDirectory(model)
                        .optRanks(oneOf(random, List.of(1, 1, 2, 3)))
                        .optBatchTokens(1 + random.nextInt(300))
                        .build()) {
            int all = own.dimensions();
            int dimensions = random.nextBoolean() ? all : 1 + random.nextInt(all);
            List<float[]> vectors = own.embedTokens(texts, dimensions).vectors();
            for (int i = 0; i < texts.size(); i++) {
                double[] expected = reference.vector(texts.get(i), pooling, dimensions);
                assertEquals(dimensions, vectors.get(i).length);
                for (int k = 0; k < dimensions; k++) {
                    assertEquals(expected[k], vectors.get(i)[k], 2e-5);
                }
            }
        }
        return texts.size();
    }
}
