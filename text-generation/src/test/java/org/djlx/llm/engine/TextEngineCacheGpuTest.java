// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.sampling.TokenLogProbability;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Preemption, prefix hits and many sequences with the decode kernels. */
@Tag("gpu")
@Tag("beside")
@Timeout(300)
class TextEngineCacheGpuTest {

    private static final Duration LONG = Duration.ofMinutes(1);
    private static final int VOCABULARY = 203;
    private static final int MAX_LENGTH_BLOCKS = 32;
    @TempDir private Path directory;

    private TextGenerator build(int ranks, int blocks, UnaryOperator<TextEngine.Builder> change)
            throws Exception {
        GpuTests.require(ranks, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        List<Device> devices = IntStream.range(0, ranks).mapToObj(Device::gpu).toList();
        ModelConfig config = LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32);
        LlamaFiles.write(directory, config, 5);
        long blockBytes = KvCache.byteSize(config, ranks, KvCache.BLOCK_TOKENS);
        return change.apply(
                        TextEngine.builder()
                                .setDirectory(directory)
                                .optDevices(devices)
                                .optCacheBytes(blocks * blockBytes))
                .build();
    }

    /** Steps overlap: a sequence is preempted while its next token is computed. */
    @ParameterizedTest
    @CsvSource({"1, AUTO", "2, AUTO", "1, FP8", "2, FP8"})
    void preemptionDoesNotChangeABit(int ranks, KvCacheDtype dtype) throws Exception {
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            int[] prompt = new Random(i).ints(1 + i * 7, 0, VOCABULARY).toArray();
            GenerationRequest.Builder builder =
                    TextEngineTest.request(prompt).optMaxTokens(100 + i);
            if (i % 2 > 0) {
                builder.optTemperature(1).optTopP(0.9).optSeed(i);
            }
            requests.add(builder.build());
        }
        UnaryOperator<TextEngine.Builder> options =
                builder ->
                        builder.optPrefixCaching(false)
                                .optBatchInvariant(true)
                                .optKvCacheDtype(dtype)
                                .optPrefillTokens(100);
        List<List<GeneratedPiece>> expected;
        try (TextGenerator generator = build(ranks, 40 * MAX_LENGTH_BLOCKS, options)) {
            expected = TextEngineCacheTest.generate(generator, requests);
            assertEquals(0, generator.statistics().preemptions());
        }
        for (int blocks : new int[] {MAX_LENGTH_BLOCKS, 100}) {
            try (TextGenerator generator = build(ranks, blocks, options)) {
                List<List<GeneratedPiece>> actual =
                        TextEngineCacheTest.generate(generator, requests);
                assertTrue(generator.statistics().preemptions() > 0);
                for (int i = 0; i < requests.size(); i++) {
                    assertEquals(expected.get(i), actual.get(i), "of " + i);
                }
            }
        }
    }

    /** Masks are computed while the graph runs; other requests run ahead and keep their texts. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void textsFollowTheirGrammars(int ranks) throws Exception {
        ByteTokens.write(directory);
        Grammar grammar = Grammar.regex("[{](?:ab|c[0-9]){3,9}[}]");
        List<GenerationRequest> free = new ArrayList<>();
        List<GenerationRequest> all = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            int[] prompt = new Random(i).ints(1 + i * 7, 0, VOCABULARY).toArray();
            GenerationRequest.Builder builder =
                    TextEngineTest.request(prompt).optMaxTokens(100).optTopLogProbabilities(2);
            if (i % 2 > 0) {
                builder.optTemperature(1.5).optTopP(0.9).optSeed(i);
            }
            free.add(builder.build());
            all.add(builder.build());
            all.add(builder.optGrammar(grammar).build());
        }
        UnaryOperator<TextEngine.Builder> options =
                builder -> builder.optPrefixCaching(false).optBatchInvariant(true);
        try (TextGenerator generator = build(ranks, 40 * MAX_LENGTH_BLOCKS, options)) {
            List<List<GeneratedPiece>> alone = TextEngineCacheTest.generate(generator, free);
            List<List<GeneratedPiece>> mixed = TextEngineCacheTest.generate(generator, all);
            for (int i = 0; i < free.size(); i++) {
                assertEquals(alone.get(i), mixed.get(2 * i), "of " + i);
                StringBuilder text = new StringBuilder();
                mixed.get(2 * i + 1).forEach(piece -> text.append(piece.text()));
                assertTrue(text.toString().matches("[{](?:ab|c[0-9]){3,9}[}]"), text.toString());
            }
        }
    }

    /**
     * With keys and values in fp8, the hit attends to rounded ones, and the first prompt does not.
     */
    @ParameterizedTest
    @CsvSource({"1, AUTO, 0.05", "2, AUTO, 0.05", "1, FP8, 0.15", "2, FP8, 0.15"})
    void findsPrefixes(int ranks, KvCacheDtype dtype, double most) throws Exception {
        try (TextGenerator generator =
                build(ranks, 8 * MAX_LENGTH_BLOCKS, builder -> builder.optKvCacheDtype(dtype))) {
            int[] prompt = new Random(1).ints(300, 0, VOCABULARY).toArray();
            GenerationRequest request = TextEngineTest.request(prompt).optMaxTokens(1).build();
            GeneratedPiece computed = generator.submit(request).await(LONG).get(0);
            List<Generation> again = generator.submitAll(List.of(request, request, request));
            for (Generation generation : again) {
                GeneratedPiece piece = generation.await(LONG).get(0);
                assertEquals(288, generation.cachedTokens());
                assertEquals(computed.logProbability(), piece.logProbability(), most);
            }
            TextEngineTest.assertIdle(generator);
        }
    }

    /**
     * Prompts that begin with a cached prefix of 128 tokens. Each step has the next 64 tokens, or
     * the last ones, of three prompts; a call of the attention has two of these chunks or one. One
     * after the other, the decode kernels compute these chunks.
     */
    @ParameterizedTest
    @CsvSource({"1, AUTO, 0.05", "2, AUTO, 0.05", "1, FP8, 0.15", "2, FP8, 0.15"})
    void laterChunksOfSeveralPromptsAreOnePrefill(int ranks, KvCacheDtype dtype, double most)
            throws Exception {
        int[] prefix = new Random(1).ints(128, 0, VOCABULARY).toArray();
        GenerationRequest first = TextEngineTest.request(prefix).optMaxTokens(1).build();
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            IntStream own = new Random(2 + i).ints(118 + i, 0, VOCABULARY);
            int[] prompt = IntStream.concat(Arrays.stream(prefix), own).toArray();
            requests.add(
                    TextEngineTest.request(prompt)
                            .optMaxTokens(1)
                            .optTopLogProbabilities(20)
                            .build());
        }
        UnaryOperator<TextEngine.Builder> options =
                builder -> builder.optKvCacheDtype(dtype).optPrefillTokens(192);
        List<GeneratedPiece> expected = new ArrayList<>();
        try (TextGenerator generator = build(ranks, 8 * MAX_LENGTH_BLOCKS, options)) {
            generator.submit(first).await(LONG);
            for (GenerationRequest request : requests) {
                expected.add(generator.submit(request).await(LONG).get(0));
            }
        }
        try (TextGenerator generator = build(ranks, 8 * MAX_LENGTH_BLOCKS, options)) {
            generator.submit(first).await(LONG);
            List<Generation> together = generator.submitAll(requests);
            for (int i = 0; i < together.size(); i++) {
                GeneratedPiece alone = expected.get(i);
                double actual =
                        together.get(i).await(LONG).get(0).topLogProbabilities().stream()
                                .filter(each -> each.token() == alone.token())
                                .mapToDouble(TokenLogProbability::logProbability)
                                .findFirst()
                                .orElse(Double.NEGATIVE_INFINITY);
                assertEquals(128, together.get(i).cachedTokens());
                assertEquals(alone.logProbability(), actual, most, "of " + i);
            }
        }
    }

    /** Large steps use other kernels than single sequences, unless bits are to be the same. */
    @ParameterizedTest
    @CsvSource({
        "1, 256, false, AUTO, 0.05",
        "2, 256, false, AUTO, 0.05",
        "1, 100, false, AUTO, 0.05",
        "2, 100, false, AUTO, 0.05",
        "1, 60, false, AUTO, 0.05",
        "1, 256, false, FP8, 0.15",
        "1, 256, true, AUTO, 0",
        "2, 256, true, AUTO, 0",
        "1, 256, true, FP8, 0"
    })
    void runsManySequences(
            int ranks, int count, boolean batchInvariant, KvCacheDtype dtype, double most)
            throws Exception {
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            requests.add(TextEngineTest.request(i % 200, i / 200).optMaxTokens(40).build());
        }
        UnaryOperator<TextEngine.Builder> options =
                builder -> builder.optBatchInvariant(batchInvariant).optKvCacheDtype(dtype);
        try (TextGenerator generator = build(ranks, 1000, options)) {
            List<Generation> generations = generator.submitAll(requests);
            while (generator.statistics().running() < count) {
                assertEquals(0, generator.statistics().finished());
                Thread.onSpinWait();
            }
            int compared = 0;
            for (int i = 0; i < count; i += 17) {
                List<GeneratedPiece> together = generations.get(i).await(LONG);
                List<GeneratedPiece> alone = generator.submit(requests.get(i)).await(LONG);
                if (batchInvariant) {
                    assertEquals(alone, together, "of " + i);
                } else { // Texts part where the last bits decide between two tokens.
                    assertEquals(alone.size(), together.size());
                    for (int k = 0; k < alone.size(); k++) {
                        GeneratedPiece expected = alone.get(k);
                        GeneratedPiece piece = together.get(k);
                        String of = "of piece " + k + " of " + i;
                        assertEquals(expected.logProbability(), piece.logProbability(), most, of);
                        if (expected.token() != piece.token()) {
                            break;
                        }
                        compared++;
                    }
                }
            }
            assertTrue(batchInvariant || compared > count / 8, compared + " tokens are the same");
        }
    }
}
