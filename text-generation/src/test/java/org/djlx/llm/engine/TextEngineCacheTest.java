// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.ops.KvCache;
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

/** Text does not depend on the size of the KV cache, on preemption, prefix hits or chunks. */
@Timeout(180)
@Tag("slow")
class TextEngineCacheTest {

    private static final Duration LONG = Duration.ofSeconds(120);
    private static final int VOCABULARY = 203;
    @TempDir private Path directory;
    private ModelConfig config;

    static Stream<Arguments> cases() {
        return Stream.of(1, 2, 4)
                .flatMap(
                        ranks ->
                                Stream.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)
                                        .map(type -> Arguments.of(ranks, type)));
    }

    private void write(ScalarType type) throws IOException {
        config = LlamaFiles.config(type, true); // of 256 positions
        LlamaFiles.write(directory, config, 3);
    }

    /** Builds a generator whose cache has a number of blocks; 16 hold the longest sequence. */
    private TextEngine build(int ranks, int blocks, UnaryOperator<TextEngine.Builder> change)
            throws IOException {
        long blockBytes = KvCache.byteSize(config, ranks, KvCache.BLOCK_TOKENS);
        return change.apply(
                        TextEngine.builder()
                                .setDirectory(directory)
                                .optRanks(ranks)
                                .optCacheBytes(blocks * blockBytes))
                .build();
    }

    private static int[] tokens(Generation generation) throws Exception {
        return generation.await(LONG).stream().mapToInt(GeneratedPiece::token).toArray();
    }

    /** Prompts of several lengths, with few different beginnings. */
    private static List<GenerationRequest> requests(int count, int newTokens, int beginnings) {
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Random random = new Random(i % beginnings);
            int[] prompt = random.ints(20 + i * 13 % 90, 0, VOCABULARY).toArray();
            if (i >= beginnings) {
                prompt[prompt.length - 1] = i;
            }
            requests.add(TextEngineTest.request(prompt).optMaxTokens(newTokens + i % 7).build());
        }
        return requests;
    }

    static List<List<GeneratedPiece>> generate(
            TextGenerator generator, List<GenerationRequest> requests) throws Exception {
        List<Generation> generations = requests.stream().map(generator::submit).toList();
        List<List<GeneratedPiece>> pieces = new ArrayList<>();
        for (Generation generation : generations) {
            pieces.add(generation.await(LONG));
        }
        TextEngineTest.assertIdle(generator);
        return pieces;
    }

    private static int[] tokens(List<GeneratedPiece> pieces) {
        return pieces.stream().mapToInt(GeneratedPiece::token).toArray();
    }

    @ParameterizedTest(name = "{0} ranks, {1}")
    @MethodSource("cases")
    void preemptionDoesNotChangeATextOrItsProbabilities(int ranks, ScalarType type)
            throws Exception {
        write(type);
        boolean exact = type != ScalarType.FLOAT32;
        List<GenerationRequest> requests = requests(10, 60, exact ? 10 : 3);
        List<List<GeneratedPiece>> expected = new ArrayList<>();
        UnaryOperator<TextEngine.Builder> options = builder -> builder.optPrefillTokens(40);
        try (TextGenerator generator = build(ranks, 200, options)) {
            for (GenerationRequest request : requests) {
                expected.add(generator.submit(request).await(LONG));
            }
            assertEquals(0, generator.statistics().preemptions());
        }
        try (TextGenerator generator = build(ranks, 16, options)) {
            List<List<GeneratedPiece>> actual = generate(generator, requests);
            assertTrue(generator.statistics().preemptions() > 3);
            for (int i = 0; i < requests.size(); i++) {
                assertArrayEquals(tokens(expected.get(i)), tokens(actual.get(i)), "of " + i);
                if (exact) { // The probabilities have the same bits.
                    assertEquals(expected.get(i), actual.get(i), "of " + i);
                }
            }
        }
    }

    /** In bfloat16 a shared block may differ in its last bit from a computed one. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void prefixHitsAndChunksDoNotChangeAText(int ranks) throws Exception {
        write(ScalarType.FLOAT32);
        List<GenerationRequest> requests = requests(12, 30, 3);
        List<List<GeneratedPiece>> expected;
        try (TextGenerator generator =
                build(ranks, 200, builder -> builder.optPrefixCaching(false))) {
            expected = generate(generator, requests);
            assertEquals(0, generator.statistics().prefixCacheQueries());
        }
        // The scheduler, which forms the chunks, does not know the ranks.
        for (int chunk : ranks == 1 ? new int[] {1, 16, 37, 4096} : new int[] {1, 37}) {
            for (int blocks : new int[] {16, 200}) {
                try (TextGenerator generator =
                        build(ranks, blocks, builder -> builder.optPrefillTokens(chunk))) {
                    List<List<GeneratedPiece>> first = generate(generator, requests);
                    List<List<GeneratedPiece>> second = generate(generator, requests);
                    for (int i = 0; i < requests.size(); i++) {
                        int[] tokens = tokens(expected.get(i));
                        assertArrayEquals(tokens, tokens(first.get(i)), "of " + i);
                        assertArrayEquals(tokens, tokens(second.get(i)), "again, of " + i);
                    }
                    GeneratorStatistics statistics = generator.statistics();
                    assertTrue(statistics.prefixCacheHits() > 0, statistics.toString());
                    assertTrue(statistics.prefixCacheHits() < statistics.prefixCacheQueries());
                    assertEquals(statistics.prefixCacheQueries(), statistics.promptTokens());
                }
            }
        }
    }

    @ParameterizedTest(name = "{0} ranks, {1}")
    @MethodSource("cases")
    void saysHowMuchOfAPromptItFound(int ranks, ScalarType type) throws Exception {
        write(type);
        try (TextGenerator generator = build(ranks, 40, builder -> builder)) {
            int[] prompt = new Random(1).ints(70, 0, VOCABULARY).toArray();
            Generation first =
                    generator.submit(TextEngineTest.request(prompt).optMaxTokens(30).build());
            int[] answer = tokens(first);
            assertEquals(0, first.cachedTokens());
            // The next turn of a chat finds the answer, too, except the last token.
            int[] turn = Arrays.copyOf(prompt, 70 + 30 + 5);
            System.arraycopy(answer, 0, turn, 70, 30);
            Generation second =
                    generator.submit(TextEngineTest.request(turn).optMaxTokens(2).build());
            second.await(LONG);
            assertEquals(96, second.cachedTokens());
            turn[20] ^= 1;
            Generation other =
                    generator.submit(TextEngineTest.request(turn).optMaxTokens(2).build());
            other.await(LONG);
            assertEquals(16, other.cachedTokens());
            assertEquals(96 + 16, generator.statistics().prefixCacheHits());
        }
    }

    @Test
    void theCacheIsAsLargeAsMemoryAllows() throws Exception {
        write(ScalarType.FLOAT32);
        int sequences = 3;
        try (TextGenerator generator =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optRanks(2)
                        .optMaxRunning(sequences)
                        .build()) {
            // Memory has room for many more.
            assertEquals(sequences * 16, generator.statistics().cacheBlocks());
        }
        TextEngine.Builder builder = TextEngine.builder().optRanks(2).optMaxRunning(sequences);
        GeneratorSettings settings = GeneratorSettings.of(builder, config);
        long blockBytes = KvCache.byteSize(config, 2, KvCache.BLOCK_TOKENS);
        assertEquals(20, settings.cacheBlocks(config, 21 * blockBytes - 1));
        assertEquals(16, settings.cacheBlocks(config, 16 * blockBytes));
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> settings.cacheBlocks(config, 16 * blockBytes - 1))
                        .getMessage();
        assertTrue(message.contains("lower maxLength, or give the cache more memory"), message);
    }

    /** As a chat without max_tokens: each may take all positions that its prompt leaves. */
    @ParameterizedTest
    @ValueSource(ints = {1, 4})
    void chatsWithoutALimitEndInASmallCache(int ranks) throws Exception {
        write(ScalarType.FLOAT32);
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < 64; i++) {
            int[] prompt = new Random(i).ints(3 + i % 20, 0, VOCABULARY).toArray();
            // Ends at random, as a model does.
            int[] stops = IntStream.range(0, 4).map(j -> 11 + j * 40 + prompt.length).toArray();
            requests.add(
                    TextEngineTest.request(prompt)
                            .optStopTokens(stops)
                            .optMaxTokens(256 - prompt.length)
                            .build());
        }
        List<List<GeneratedPiece>> expected;
        try (TextGenerator generator = build(ranks, 64 * 16, builder -> builder)) {
            expected = generate(generator, requests);
            assertEquals(0, generator.statistics().preemptions());
        }
        try (TextGenerator generator = build(ranks, 48, builder -> builder)) {
            List<List<GeneratedPiece>> actual = generate(generator, requests);
            for (int i = 0; i < requests.size(); i++) {
                assertArrayEquals(tokens(expected.get(i)), tokens(actual.get(i)), "of " + i);
            }
            assertTrue(generator.statistics().preemptions() > 0);
            assertEquals(64, generator.statistics().finished());
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void runs256Sequences(int ranks) throws Exception {
        write(ScalarType.FLOAT32);
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < 256; i++) {
            requests.add(TextEngineTest.request(i % 200, i / 200).optMaxTokens(12).build());
        }
        try (TextEngine generator = build(ranks, 600, builder -> builder)) {
            List<Generation> generations = generator.submitAll(requests);
            while (generator.statistics().running() < 256) {
                assertEquals(0, generator.statistics().finished());
                Thread.onSpinWait();
            }
            for (int i = 0; i < 256; i += 51) {
                int[] together = tokens(generations.get(i));
                assertArrayEquals(tokens(generator.submit(requests.get(i))), together, "of " + i);
            }
        }
    }

    /** Random requests and cancels in a tiny cache. */
    @ParameterizedTest(name = "{0} ranks, {1}")
    @CsvSource({"1, BFLOAT16", "2, FLOAT32", "4, FLOAT32"})
    void cancellingLosesNoBlock(int ranks, ScalarType type) throws Exception {
        write(type);
        List<GenerationRequest> kinds = requests(6, 40, 3);
        try (TextGenerator generator =
                build(ranks, 16, builder -> builder.optPrefixCaching(false).optMaxRunning(8))) {
            List<List<GeneratedPiece>> expected = new ArrayList<>();
            for (GenerationRequest kind : kinds) {
                expected.add(generator.submit(kind).await(LONG));
            }
            Random random = new Random(5);
            List<Generation> all = new ArrayList<>();
            for (int i = 0; i < 60; i++) {
                all.add(generator.submit(kinds.get(i % kinds.size())));
                if (random.nextInt(2) == 0) {
                    Generation some = all.get(random.nextInt(all.size()));
                    some.next(LONG); // It runs now, or has run.
                    some.cancel();
                }
            }
            for (int i = 0; i < all.size(); i++) {
                all.get(i).await(LONG);
                if (all.get(i).finishReason().orElseThrow() == FinishReason.LENGTH) {
                    int length = expected.get(i % kinds.size()).size();
                    assertEquals(length, all.get(i).generatedTokens());
                }
            }
            TextEngineTest.assertIdle(generator);
            GeneratorStatistics statistics = generator.statistics();
            assertTrue(statistics.preemptions() > 0, statistics.toString());
            assertTrue(statistics.cancelled() > 5, statistics.toString());
            List<List<GeneratedPiece>> after = generate(generator, kinds);
            for (int i = 0; i < kinds.size(); i++) {
                assertArrayEquals(tokens(expected.get(i)), tokens(after.get(i)), "of " + i);
            }
        }
    }
}
