// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.pool.RankWorker;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.soak.Soak;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.LlamaConfig;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.ops.LlamaModelTest;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.ops.TransformerModel;
import org.djlx.llm.sampling.LogitEdits;
import org.djlx.llm.sampling.Logits;
import org.djlx.llm.sampling.SamplingParameters;
import org.djlx.llm.sampling.TokenLogProbability;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A Llama on GPUs: logits against loops in float64, and text against that of the CPU. */
@Tag("gpu")
@Tag("beside")
@Timeout(300)
class TextEngineGpuTest {

    @TempDir private Path directory;

    static Stream<Arguments> cases() {
        return Stream.of(1, 2, 4, 8)
                .flatMap(
                        ranks ->
                                Stream.of(
                                        Arguments.of(ranks, ScalarType.FLOAT32),
                                        Arguments.of(ranks, ScalarType.FLOAT16),
                                        Arguments.of(ranks, ScalarType.BFLOAT16)));
    }

    private static Device[] gpus(int count) {
        GpuTests.require(count, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        return IntStream.range(0, count).mapToObj(Device::gpu).toArray(Device[]::new);
    }

    @ParameterizedTest(name = "{0} GPUs, {1}")
    @MethodSource("cases")
    void hastheLogitsOfAWholeModel(int ranks, ScalarType type) throws Exception {
        LlamaFiles.write(directory, LlamaFiles.config(type, true), 1);
        LlamaModelTest.compare(directory, groups(ranks), false);
    }

    static Stream<Arguments> decodableCases() {
        return Stream.of(1, 2, 4, 8)
                .flatMap(
                        ranks ->
                                Stream.of(
                                        Arguments.of(ranks, ScalarType.FLOAT16, 16),
                                        Arguments.of(ranks, ScalarType.BFLOAT16, 48),
                                        Arguments.of(ranks, ScalarType.BFLOAT16, 128)));
    }

    @ParameterizedTest(name = "{0} GPUs, {1}, heads of {2}")
    @MethodSource("decodableCases")
    void decodesWiththeLogitsOfAWholeModel(int ranks, ScalarType type, int headSize)
            throws Exception {
        LlamaFiles.write(directory, LlamaFiles.decodable(type, false, headSize), 1);
        LlamaModelTest.compare(directory, groups(ranks), true);
    }

    /** With an MLP so wide that the fused all-gather + matmul computes the activation. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void readsAPromptAsItDecodesIt(int ranks) throws Exception {
        ModelConfig small = LlamaFiles.decodable(ScalarType.BFLOAT16, false, 32);
        ModelConfig config = resized(small, small.vocabularySize(), 256, 16_384, 2);
        LlamaFiles.write(directory, config, 1);
        int[] tokens = new Random(3).ints(300, 0, config.vocabularySize()).toArray();
        int[] slots = LlamaModelTest.slots(0, tokens.length);
        int[] others = LlamaModelTest.slots(19, tokens.length);
        try (Safetensors files = Safetensors.open(directory);
                RankPool<TokenBatch, float[]> pool =
                        RankPool.start(
                                "reads",
                                groups(ranks),
                                group ->
                                        reading(
                                                group,
                                                LlamaModelTest.model(config, group, files)))) {
            float[] whole = pool.submit(chunk(tokens, 0, tokens.length, slots)).get();
            float[] decoded = null;
            for (int begin = 0; begin < tokens.length; begin += 60) {
                decoded = pool.submit(chunk(tokens, begin, begin + 60, others)).get();
            }
            float[] continued = null;
            for (int begin = 0; begin < tokens.length; begin += 100) {
                continued = pool.submit(chunk(tokens, begin, begin + 100, slots)).get();
            }
            assertArrayEquals(decoded, whole, 30f / (1 << 8));
            assertArrayEquals(decoded, continued, 30f / (1 << 8));
        }
    }

    /**
     * Products of more rows add in another order, and round some results in another way, with FP8
     * to 4 bits. A token's scale of FP8 is its own.
     */
    @ParameterizedTest
    @CsvSource({"NONE, 1, 0.02", "FP8, 1, 0.1", "INT4, 1, 0.02", "FP8, 2, 0.1", "INT4, 2, 0.02"})
    void promptsOfAPrefillHaveTheLogitsOfEachAlone(
            Quantization quantization, int ranks, double most) throws Exception {
        List<ProcessGroup> groups = groups(ranks);
        ModelConfig config = LlamaFiles.decodable(ScalarType.BFLOAT16, true, 16);
        LlamaFiles.write(directory, config, 1);
        int[] lengths = {70, 33, 100, 240};
        List<TokenBatch.Chunk> chunks = new ArrayList<>();
        int block = 0;
        for (int i = 0; i < lengths.length; i++) {
            int[] tokens = new Random(i).ints(lengths[i], 0, 203).toArray();
            int[] slots = LlamaModelTest.slots(block, lengths[i]);
            block += slots.length / KvCache.BLOCK_TOKENS;
            chunks.add(
                    new TokenBatch.Chunk(i, tokens, 0, slots, true, SamplingParameters.GREEDY, 0));
        }
        try (Safetensors files = Safetensors.open(directory)) {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (TransformerModel model =
                                        LlamaModelTest.model(config, group, files, quantization);
                                NDManager manager = NDManager.newBaseManager(group.device())) {
                            Logits together = model.forward(new TokenBatch(chunks), manager);
                            for (int i = 0; i < lengths.length; i++) {
                                TokenBatch one = new TokenBatch(chunks.subList(i, i + 1));
                                float[] alone = model.forward(one, manager).toArray(0);
                                double error = error(alone, together.toArray(i));
                                String text = quantization + ", prompt " + i + ": " + error;
                                System.out.println(text);
                                assertTrue(error < most, text);
                            }
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Returns the root mean square of the difference, relative to that of the expected. */
    private static double error(float[] expected, float[] actual) {
        double difference = 0;
        double size = 0;
        for (int i = 0; i < expected.length; i++) {
            difference += Math.pow(actual[i] - expected[i], 2);
            size += Math.pow(expected[i], 2);
        }
        return Math.sqrt(difference / size);
    }

    /** Two models on the same GPUs get random requests, and answer each as they do alone. */
    @Test
    void twoModelsOnTheSameGpus() throws Exception {
        twoModels(Duration.ofSeconds(10));
    }

    @Test
    @Tag("soak")
    void twoModelsForLong() throws Exception {
        twoModels(Duration.ofSeconds(Soak.SECONDS));
    }

    private void twoModels(Duration time) throws Exception {
        P2pRanks.require(2);
        P2pRanks.requireNccl();
        ModelConfig small = LlamaFiles.decodable(ScalarType.BFLOAT16, false, 32);
        ModelConfig config = resized(small, small.vocabularySize(), 256, 16_384, 2);
        try (AloneAndTogether x = new AloneAndTogether(config, directory.resolve("x"), 1);
                AloneAndTogether y = new AloneAndTogether(config, directory.resolve("y"), 2)) {
            x.answerAlone();
            y.answerAlone();
            long end = System.nanoTime() + time.toNanos();
            CompletableFuture<Integer> other =
                    CompletableFuture.supplyAsync(() -> x.answerUntil(end));
            int answers = y.answerUntil(end);
            System.out.printf("two models: %d and %d answers%n", other.get(), answers);
        }
    }

    /** A model of two ranks, and what it answers to some requests while it is alone. */
    private static final class AloneAndTogether implements AutoCloseable {

        private static final int LENGTH = 300;
        private static final int[] BEGINS = {0, 0, LENGTH / 3, LENGTH / 3 - 1, LENGTH - 1};
        private static final int[] ENDS = {LENGTH, LENGTH / 3, LENGTH, LENGTH / 3, LENGTH};

        private final Random random;
        private final int[] tokens;
        private final int[] slots;
        private final List<float[]> answers = new ArrayList<>();
        private final Safetensors files;
        private final RankPool<TokenBatch, float[]> pool;

        AloneAndTogether(ModelConfig config, Path directory, int seed) throws IOException {
            LlamaFiles.write(Files.createDirectories(directory), config, seed);
            random = new Random(Soak.SEED * 10 + seed);
            tokens = new Random(seed).ints(LENGTH, 0, config.vocabularySize()).toArray();
            slots = LlamaModelTest.slots(0, LENGTH);
            files = Safetensors.open(directory);
            pool =
                    RankPool.start(
                            "model " + seed,
                            ProcessGroups.local("cuda_p2p", 2, P2pRanks.options().build()),
                            group ->
                                    LlamaModelTest.onOwnStream(
                                            group,
                                            () ->
                                                    reading(
                                                            group,
                                                            LlamaModelTest.model(
                                                                    config, group, files))));
        }

        private float[] answer(int request) {
            return pool.submit(chunk(tokens, BEGINS[request], ENDS[request], slots)).join();
        }

        void answerAlone() {
            for (int request = 0; request < BEGINS.length; request++) {
                answers.add(answer(request));
            }
        }

        /** Returns the number of answers. */
        int answerUntil(long end) {
            int answered = 0;
            for (; System.nanoTime() < end; answered++) {
                int request = random.nextInt(BEGINS.length);
                // Keys and values come from requests of several lengths, with other roundings.
                assertArrayEquals(answers.get(request), answer(request), 30f / (1 << 8));
            }
            assertTrue(answered > 0);
            return answered;
        }

        @Override
        public void close() throws IOException {
            pool.close();
            files.close();
        }
    }

    private static TokenBatch chunk(int[] tokens, int begin, int end, int[] slots) {
        return new TokenBatch(
                List.of(
                        new TokenBatch.Chunk(
                                0,
                                Arrays.copyOfRange(tokens, begin, end),
                                begin,
                                slots,
                                true,
                                SamplingParameters.GREEDY,
                                0)));
    }

    private static RankWorker<TokenBatch, float[]> reading(
            ProcessGroup group, TransformerModel model) {
        return new RankWorker<>() {
            @Override
            public float[] serve(TokenBatch batch) {
                try (NDManager manager = NDManager.newBaseManager(group.device())) {
                    return model.forward(batch, manager).toArray(0);
                }
            }

            @Override
            public void close() {
                model.close();
            }
        };
    }

    private static List<ProcessGroup> groups(int ranks) {
        NcclOptions nccl = NcclOptions.builder().optDevices(gpus(ranks)).build();
        CudaP2pOptions options = CudaP2pOptions.builder().optNcclOptions(nccl).build();
        return ProcessGroups.local("cuda_p2p", ranks, options);
    }

    /** Alone, and with so many others that one graph cannot hold all rows. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void tokensDoNotDependOnOtherSequences(int ranks) throws Exception {
        List<Device> devices = List.of(gpus(ranks));
        LlamaFiles.write(directory, LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32), 5);
        try (TextGenerator generator =
                build(
                        builder ->
                                builder.optDevices(devices)
                                        .optMaxRunning(100)
                                        .optBatchInvariant(true)
                                        .optPrefixCaching(false)
                                        .optPrefillTokens(ranks == 1 ? 40 : 100))) {
            List<GenerationRequest> requests = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                int[] prompt = new Random(i).ints(1 + i * 3, 0, 203).toArray();
                GenerationRequest.Builder builder =
                        GenerationRequest.builder()
                                .setPromptTokens(prompt)
                                .optMaxTokens(5 + i % 30)
                                .optIgnoreEndOfText(true);
                if (i % 2 > 0) {
                    builder.optTemperature(1).optTopP(0.9).optSeed(i);
                }
                requests.add(builder.build());
            }
            List<Generation> together = new ArrayList<>();
            for (GenerationRequest request : requests) {
                together.add(generator.submit(request));
            }
            List<List<GeneratedPiece>> pieces = new ArrayList<>();
            for (Generation generation : together) {
                pieces.add(generation.await(Duration.ofMinutes(1)));
            }
            for (int i = 0; i < requests.size(); i += 9) {
                List<GeneratedPiece> alone =
                        generator.submit(requests.get(i)).await(Duration.ofMinutes(1));
                assertEquals(alone, pieces.get(i), "of " + i); // probabilities, too
            }
        }
    }

    /**
     * Of so many tokens that logits of 16 bits are often equal, and rows not aligned; behind single
     * tokens and behind two prompts that are too long to be decoded.
     */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void drawsByTheWeightsOfScores(int ranks) throws Exception {
        ModelConfig small = LlamaFiles.decodable(ScalarType.BFLOAT16, false, 32);
        ModelConfig config =
                resized(small, 150_003, small.hiddenSize(), small.intermediateSize(), 1);
        LlamaFiles.write(directory, config, 1);
        Random random = new Random(2);
        try (Safetensors files = Safetensors.open(directory);
                RankPool<TokenBatch, Void> pool =
                        RankPool.start(
                                "draws",
                                groups(ranks),
                                group ->
                                        sampling(
                                                group,
                                                LlamaModelTest.model(config, group, files)))) {
            for (int step = 0; step < 3; step++) {
                List<TokenBatch.Chunk> chunks = new ArrayList<>();
                for (int i = 0; i < 32; i++) {
                    SamplingParameters sampling =
                            new SamplingParameters(
                                    new double[] {0, 0.05, 0.7, 1, 3}[random.nextInt(5)],
                                    new int[] {0, 1, 7, 100, 200_000}[random.nextInt(5)],
                                    new double[] {1, 0.99, 0.5, 0.001}[random.nextInt(4)],
                                    new double[] {0, 0, 0.01, 0.5}[random.nextInt(4)],
                                    random.nextLong(),
                                    random.nextInt(8) == 0 ? random.nextInt(150_003) : -1,
                                    random.nextInt(2) * random.nextInt(21),
                                    random.nextBoolean() ? null : edits(random, 150_003));
                    int count = i < 30 ? 1 : TokenBatch.MAX_DECODE_TOKENS - 3 + 4 * step;
                    int block = i < 30 ? i : 5 * i - 120;
                    int[] tokens = random.ints(count, 0, config.vocabularySize()).toArray();
                    chunks.add(
                            new TokenBatch.Chunk(
                                    i,
                                    tokens,
                                    0,
                                    LlamaModelTest.slots(block, count),
                                    true,
                                    sampling,
                                    0));
                }
                pool.submit(new TokenBatch(chunks)).get();
            }
        }
    }

    /** Edits of up to 3000 tokens, more than the threads of a block. */
    private static LogitEdits edits(Random random, int vocabulary) {
        int[] tokens = random.ints(0, vocabulary).distinct().limit(random.nextInt(3000)).toArray();
        int[] entries = new int[3 * tokens.length];
        for (int i = 0; i < tokens.length; i++) {
            float[] biases = {0, 0, 1.5f, -3, -100, 5, Float.NEGATIVE_INFINITY};
            entries[3 * i] = tokens[i];
            entries[3 * i + 1] =
                    random.nextInt(4) + (random.nextBoolean() ? LogitEdits.IN_PROMPT : 0);
            entries[3 * i + 2] = Float.floatToIntBits(biases[random.nextInt(biases.length)]);
        }
        int[] allowed = random.ints((vocabulary + 31) / 32 - random.nextInt(2)).toArray();
        return new LogitEdits(
                new float[] {1, 1.25f, 0.5f}[random.nextInt(3)],
                new float[] {0, 0.3f, -0.3f}[random.nextInt(3)],
                new float[] {0, 1.1f, -1.1f}[random.nextInt(3)],
                entries,
                random.nextBoolean() ? null : () -> allowed);
    }

    /** Edited logits in float64. */
    private static double[] edited(float[] logits, LogitEdits edits) {
        double[] result = new double[logits.length];
        for (int token = 0; token < result.length; token++) {
            boolean allowed =
                    edits == null
                            || edits.allowed() == null
                            || BitSet.valueOf(bytes(edits.allowed().get())).get(token);
            result[token] = allowed ? logits[token] : Double.NEGATIVE_INFINITY;
        }
        for (int i = 0; edits != null && i < edits.entries().length; i += 3) {
            int token = edits.entries()[i];
            int count = edits.entries()[i + 1];
            int generated = count % LogitEdits.IN_PROMPT;
            double logit = result[token] + Float.intBitsToFloat(edits.entries()[i + 2]);
            if (count > 0) {
                double factor = edits.repetitionPenalty();
                logit = logit > 0 ? logit / factor : logit * factor;
            }
            logit -= edits.frequencyPenalty() * (double) generated;
            result[token] = generated > 0 ? logit - edits.presencePenalty() : logit;
        }
        return result;
    }

    private static ByteBuffer bytes(int[] words) {
        ByteBuffer bytes = ByteBuffer.allocate(words.length * 4).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asIntBuffer().put(words);
        return bytes;
    }

    private static RankWorker<TokenBatch, Void> sampling(
            ProcessGroup group, TransformerModel model) {
        return new RankWorker<>() {
            @Override
            public Void serve(TokenBatch batch) {
                try (NDManager manager = NDManager.newBaseManager(group.device())) {
                    Logits logits = model.forward(batch, manager);
                    List<float[]> all =
                            IntStream.range(0, logits.count()).mapToObj(logits::toArray).toList();
                    IntStream.range(0, all.size())
                            .parallel()
                            .forEach(
                                    i ->
                                            check(
                                                    batch.chunks().get(i).sampling(),
                                                    all.get(i),
                                                    logits.deviceTokens().get(i)));
                }
                return null;
            }

            @Override
            public void close() {
                model.close();
            }
        };
    }

    /** Checks that the random number falls into the token's part of the kept probabilities. */
    private static void check(
            SamplingParameters sampling, float[] logits, Logits.DeviceToken onDevice) {
        String text = sampling + " gave " + onDevice;
        assertTrue(onDevice.sampled());
        assertEquals(logits[onDevice.token()], onDevice.logit(), text);
        double[] raw = edited(logits, null);
        double highestRaw = Arrays.stream(raw).max().orElseThrow();
        double all = Arrays.stream(raw).map(logit -> Math.exp(logit - highestRaw)).sum();
        assertEquals(highestRaw + Math.log(all), onDevice.logSumExp(), 1e-4);
        List<TokenLogProbability> top =
                IntStream.range(0, logits.length)
                        .boxed()
                        .sorted(Comparator.comparingDouble(token -> -logits[token]))
                        .limit(sampling.topLogProbabilities())
                        .map(
                                token ->
                                        new TokenLogProbability(
                                                token,
                                                (float) (logits[token] - onDevice.logSumExp())))
                        .toList();
        assertEquals(top, onDevice.top(), text);
        if (sampling.given() >= 0) {
            assertEquals(sampling.given(), onDevice.token());
            return;
        }
        double[] edited = edited(logits, sampling.edits());
        double highest = Arrays.stream(edited).max().orElseThrow();
        if (sampling.temperature() == 0) {
            assertEquals(highest, edited[onDevice.token()], 1e-5, text);
            return;
        }
        double[] weights =
                Arrays.stream(edited)
                        .map(logit -> Math.exp((logit - highest) / sampling.temperature()))
                        .map(weight -> weight < sampling.minP() ? 0 : weight)
                        .toArray();
        double[] sorted = Arrays.stream(weights).sorted().toArray();
        boolean cut = sampling.topK() > 0 && sampling.topK() < sorted.length;
        double least = sorted[cut ? sorted.length - sampling.topK() : 0];
        double sum = Arrays.stream(weights).filter(weight -> weight >= least).sum();
        double kept = 0;
        int index = sorted.length;
        while (index > 0 && sorted[index - 1] >= least && kept < sampling.topP() * sum) {
            kept += sorted[--index];
        }
        double smallest = sorted[index];
        int equals = 0; // that are kept
        while (index + equals < sorted.length && sorted[index + equals] == smallest) {
            equals++;
        }
        assertTrue(weights[onDevice.token()] >= smallest * (1 - 1e-5), text);
        double before = 0;
        for (int token = 0; token < onDevice.token(); token++) {
            if (weights[token] > smallest || (weights[token] == smallest && equals-- > 0)) {
                before += weights[token];
            }
        }
        double at = (sampling.random() >>> 11) * 0x1.0p-53 * kept;
        // Equal probabilities may be ordered in another way; edits round in float32.
        double rounding = (sampling.edits() == null ? 1e-6 : 1e-5) * kept + smallest;
        assertTrue(
                before - rounding <= at && at <= before + weights[onDevice.token()] + rounding,
                text);
    }

    /** While the next step runs ahead, only the device knows the last token that counts. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void penaltiesCountTheTokenThatTheHostDoesNotKnowYet(int ranks) throws Exception {
        List<Device> devices = List.of(gpus(ranks));
        LlamaFiles.write(directory, LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32), 5);
        try (TextGenerator generator = build(builder -> builder.optDevices(devices))) {
            List<Generation> generations = new ArrayList<>();
            for (int i = 0; i < 70; i++) {
                generations.add(
                        generator.submit(
                                GenerationRequest.builder()
                                        .setPromptTokens(
                                                new Random(i).ints(1 + i, 0, 203).toArray())
                                        .optMaxTokens(60)
                                        .optIgnoreEndOfText(true)
                                        .optFrequencyPenalty(0.25 * (i % 3))
                                        .optPresencePenalty(0.5 * (i % 2))
                                        .optTopLogProbabilities(20)
                                        .build()));
            }
            Set<List<Integer>> repetitive = new HashSet<>();
            for (int i = 0; i < generations.size(); i++) {
                Map<Integer, Integer> counts = new HashMap<>();
                for (GeneratedPiece piece : generations.get(i).await(Duration.ofMinutes(1))) {
                    double best = Double.NEGATIVE_INFINITY;
                    double own = Double.NEGATIVE_INFINITY;
                    for (TokenLogProbability each : piece.topLogProbabilities()) {
                        int count = counts.getOrDefault(each.token(), 0);
                        double edited =
                                each.logProbability()
                                        - 0.25 * (i % 3) * count
                                        - (count > 0 ? 0.5 * (i % 2) : 0);
                        best = Math.max(best, edited);
                        own = each.token() == piece.token() ? edited : own;
                    }
                    double others = piece.topLogProbabilities().get(19).logProbability();
                    if (best > others) { // Otherwise a token beyond the list may be the best.
                        assertEquals(best, own, 1e-4, "request " + i + ": " + piece);
                    }
                    counts.merge(piece.token(), 1, Integer::sum);
                }
                if (counts.size() < 30) {
                    repetitive.add(List.of(i % 3, i % 2));
                }
            }
            assertFalse(repetitive.contains(List.of(2, 1))); // as far as penalties go
        }
    }

    /**
     * Prompts of many lengths that come together, some in parts and some with blocks of others,
     * give tokens as probable as those computed row by row.
     */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void promptsComputedTogetherGiveTheTokensOfEach(int ranks) throws Exception {
        List<Device> devices = List.of(gpus(ranks));
        LlamaFiles.write(directory, LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32), 5);
        try (TextGenerator generator =
                build(builder -> builder.optDevices(devices).optPrefillTokens(200))) {
            int[] beginning = new Random(-1).ints(97, 0, 203).toArray();
            generator.submit(request(beginning)).await(Duration.ofMinutes(1));
            List<GenerationRequest> requests = new ArrayList<>();
            for (int i = 0; i < 60; i++) {
                int[] prompt = new Random(i).ints(2 + i * 7, 0, 203).toArray();
                int shared = Math.min(prompt.length, i % 3 * 48);
                System.arraycopy(beginning, 0, prompt, 0, shared);
                requests.add(request(prompt));
            }
            List<Generation> generations = generator.submitAll(requests);
            for (int i = 0; i < requests.size(); i++) {
                List<GeneratedPiece> pieces = generations.get(i).await(Duration.ofMinutes(1));
                int[] prompt = requests.get(i).promptTokens().orElseThrow();
                int[] all =
                        IntStream.concat(
                                        Arrays.stream(prompt),
                                        pieces.stream().mapToInt(GeneratedPiece::token))
                                .toArray();
                Generation again =
                        generator.submit(
                                GenerationRequest.builder()
                                        .setPromptTokens(all)
                                        .optMaxTokens(1)
                                        .optPromptLogProbabilities(true)
                                        .optTopLogProbabilities(1)
                                        .build());
                again.await(Duration.ofMinutes(1));
                for (int j = 0; j < pieces.size(); j++) {
                    GeneratedPiece alone = again.promptPieces().get(prompt.length + j);
                    String text = "of " + i + " at " + j;
                    assertEquals(alone.logProbability(), pieces.get(j).logProbability(), 0.1, text);
                    float best = alone.topLogProbabilities().get(0).logProbability();
                    assertEquals(best, alone.logProbability(), 0.1, text);
                }
            }
            assertTrue(generator.statistics().prefixCacheHits() > 0);
        }
    }

    private static GenerationRequest request(int[] prompt) {
        return GenerationRequest.builder()
                .setPromptTokens(prompt)
                .optMaxTokens(10)
                .optIgnoreEndOfText(true)
                .build();
    }

    /** The prompt of several choices is computed once, and the log probabilities are the same. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void promptsHaveLogProbabilitiesAndAreShared(int ranks) throws Exception {
        List<Device> devices = List.of(gpus(ranks));
        LlamaFiles.write(directory, LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32), 5);
        try (TextGenerator generator = build(builder -> builder.optDevices(devices))) {
            int[] prompt = new Random(1).ints(100, 0, 203).toArray();
            GenerationRequest.Builder request =
                    GenerationRequest.builder()
                            .setPromptTokens(prompt)
                            .optMaxTokens(40)
                            .optIgnoreEndOfText(true)
                            .optTopLogProbabilities(3);
            List<Generation> choices = generator.submitAll(Collections.nCopies(5, request.build()));
            List<GeneratedPiece> pieces = choices.get(0).await(Duration.ofMinutes(1));
            for (Generation choice : choices.subList(1, 5)) {
                assertEquals(96, choice.cachedTokens());
                assertEquals(40, choice.await(Duration.ofMinutes(1)).size());
            }
            assertEquals(0, choices.get(0).cachedTokens());
            int[] all =
                    IntStream.concat(
                                    Arrays.stream(prompt),
                                    pieces.stream().mapToInt(GeneratedPiece::token))
                            .toArray();
            Generation again =
                    generator.submit(
                            request.setPromptTokens(all).optPromptLogProbabilities(true).build());
            again.await(Duration.ofMinutes(1));
            assertEquals(0, again.cachedTokens());
            List<GeneratedPiece> promptPieces = again.promptPieces();
            assertArrayEquals(all, promptPieces.stream().mapToInt(GeneratedPiece::token).toArray());
            assertTrue(Float.isNaN(promptPieces.get(0).logProbability()));
            for (int i = 0; i < 40; i++) {
                GeneratedPiece computed = promptPieces.get(prompt.length + i);
                // Keys and values of the prompt were rounded to bfloat16 in another order.
                assertEquals(
                        pieces.get(i).logProbability(), computed.logProbability(), 0.1, "at " + i);
                assertEquals(3, computed.topLogProbabilities().size());
            }
        }
    }

    /**
     * The next step is in flight when the token arrives; then other sequences get the cache blocks.
     */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void stopsAtTokensThatAreFoundLate(int ranks) throws Exception {
        List<Device> devices = List.of(gpus(ranks));
        ModelConfig config = LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32);
        LlamaFiles.write(directory, config, 5);
        long blockBytes = KvCache.byteSize(config, ranks, KvCache.BLOCK_TOKENS);
        int blocks = KvCacheManager.blocks(config.maxLength());
        try (TextGenerator generator =
                build(
                        builder ->
                                builder.optDevices(devices)
                                        .optPrefixCaching(false)
                                        .optBatchInvariant(true)
                                        .optCacheBytes(blocks * blockBytes))) {
            List<GenerationRequest.Builder> requests = new ArrayList<>();
            List<List<GeneratedPiece>> whole = new ArrayList<>();
            for (int i = 0; i < 40; i++) {
                requests.add(
                        GenerationRequest.builder()
                                .setPromptTokens(new Random(i).ints(1 + i, 0, 203).toArray())
                                .optMaxTokens(1 + i)
                                .optIgnoreEndOfText(true));
                GenerationRequest request = requests.get(i).build();
                whole.add(generator.submit(request).await(Duration.ofMinutes(1)));
            }
            List<Generation> generations = new ArrayList<>();
            for (int i = 0; i < requests.size(); i++) {
                int stop = whole.get(i).get(i / 2).token();
                generations.add(generator.submit(requests.get(i).optStopTokens(stop).build()));
            }
            for (int i = 0; i < requests.size(); i++) {
                int stop = whole.get(i).get(i / 2).token();
                List<GeneratedPiece> expected = new ArrayList<>();
                for (GeneratedPiece piece : whole.get(i)) {
                    expected.add(piece);
                    if (piece.token() == stop) {
                        break;
                    }
                }
                assertEquals(expected, generations.get(i).await(Duration.ofMinutes(1)), "of " + i);
                assertEquals(FinishReason.STOP, generations.get(i).finishReason().orElseThrow());
            }
        }
    }

    /** The other is in a step, or two, that wait for it. */
    @Test
    void loadsTheModelAgainWhenARankFailsBetweenSteps() throws Exception {
        List<Device> devices = List.of(gpus(2));
        LlamaFiles.write(directory, LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32), 5);
        try (TextEngine generator = build(builder -> builder.optDevices(devices))) {
            GenerationRequest.Builder request =
                    GenerationRequest.builder()
                            .setPromptTokens(1, 2, 3)
                            .optIgnoreEndOfText(true)
                            .optMaxTokens(20);
            List<GeneratedPiece> expected =
                    generator.submit(request.build()).await(Duration.ofMinutes(1));
            for (int i = 0; i < 3; i++) {
                Generation generation = generator.submit(request.optMaxTokens(400).build());
                for (int token = 0; token <= i; token++) {
                    generation.next(Duration.ofMinutes(1));
                }
                TextEngineTest.breakRank(generator);
                EngineException failure =
                        assertThrows(
                                EngineException.class,
                                () -> generation.await(Duration.ofMinutes(1)));
                assertTrue(failure.getMessage().contains("rank 1 fell over"), failure.getMessage());
                assertEquals(
                        expected,
                        generator
                                .submit(request.optMaxTokens(20).build())
                                .await(Duration.ofMinutes(1)));
            }
            assertEquals(3, generator.statistics().reloads());
        }
    }

    @Test
    void generatesWhatTheCpuDoes() throws Exception {
        List<Device> devices = List.of(gpus(2));
        LlamaFiles.write(directory, LlamaFiles.config(ScalarType.FLOAT32, true), 3);
        List<int[]> expected = generate(builder -> builder);
        List<int[]> tokens = generate(builder -> builder.optDevices(devices));
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), tokens.get(i), "of " + i);
        }
    }

    /** Greedy and random sampling, of short and long prompts, at the same time. */
    private List<int[]> generate(UnaryOperator<TextEngine.Builder> change) throws Exception {
        try (TextGenerator generator = build(change)) {
            List<Generation> generations = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                int[] prompt = IntStream.range(1, 2 + i * 10).toArray();
                GenerationRequest.Builder builder =
                        GenerationRequest.builder()
                                .setPromptTokens(prompt)
                                .optMaxTokens(10 + i)
                                .optIgnoreEndOfText(true);
                if (i % 2 > 0) {
                    builder.optTemperature(1).optTopK(20).optRepetitionPenalty(1.2).optSeed(i);
                }
                generations.add(generator.submit(builder.build()));
            }
            List<int[]> tokens = new ArrayList<>();
            for (Generation generation : generations) {
                tokens.add(
                        generation.await(Duration.ofMinutes(1)).stream()
                                .mapToInt(GeneratedPiece::token)
                                .toArray());
            }
            return tokens;
        }
    }

    private TextEngine build(UnaryOperator<TextEngine.Builder> change) throws IOException {
        return change.apply(TextEngine.builder().setDirectory(directory)).build();
    }

    private static ModelConfig resized(
            ModelConfig config, int vocabulary, int hidden, int intermediate, int layers) {
        return LlamaConfig.builder()
                .vocabulary(vocabulary)
                .hidden(hidden)
                .heads(config.heads(), config.kvHeads(), config.headSize())
                .maxLength(config.maxLength())
                .endTokens()
                .type(config.type())
                .layers(layers, LayerConfig.llama(config.rope(), config.headSize(), intermediate))
                .build();
    }
}
