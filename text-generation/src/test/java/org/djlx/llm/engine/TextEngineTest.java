// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.util.Progress;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.pool.RankPool;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.LlamaReference;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.sampling.Sampler;
import org.djlx.llm.sampling.TokenLogProbability;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Generation by a small random Llama on CPU ranks. */
@Timeout(120)
public class TextEngineTest {

    private static final Duration LONG = Duration.ofSeconds(60);
    @TempDir private static Path directory;

    @BeforeAll
    static void write() throws IOException {
        ByteTokens.writeModel(directory, 3);
    }

    private static TextEngine generator(int ranks, UnaryOperator<TextEngine.Builder> change)
            throws IOException {
        return change.apply(TextEngine.builder().setDirectory(directory).optRanks(ranks)).build();
    }

    public static GenerationRequest.Builder request(int... prompt) {
        return GenerationRequest.builder().setPromptTokens(prompt).optIgnoreEndOfText(true);
    }

    static GenerationRequest adapted() {
        return request(prompt(40, 3)).optMaxTokens(8).optAdapter("a").build();
    }

    private static int[] prompt(int length, int seed) {
        return new Random(seed).ints(length, 0, ByteTokens.VOCABULARY).toArray();
    }

    private static int[] tokens(List<GeneratedPiece> pieces) {
        return pieces.stream().mapToInt(GeneratedPiece::token).toArray();
    }

    private static String text(List<GeneratedPiece> pieces) {
        return pieces.stream().map(GeneratedPiece::text).collect(Collectors.joining());
    }

    public static void assertIdle(TextGenerator generator) {
        GeneratorStatistics statistics = generator.statistics();
        // A generation ends for its caller before its cache blocks are freed.
        for (int i = 0; i < 1000 && statistics.running() > 0; i++) {
            sleep();
            statistics = generator.statistics();
        }
        assertEquals(0, statistics.running());
        assertEquals(0, statistics.queued());
        assertEquals(0, statistics.cacheBlocksInUse());
    }

    /** Holds the ranks until the latch is counted down, or until a timeout if the test fails. */
    public static CountDownLatch hold(TextEngine generator) {
        CountDownLatch latch = new CountDownLatch(1);
        submit(generator, group -> latch.await(LONG.toSeconds(), TimeUnit.SECONDS));
        return latch;
    }

    /** A task that ranks run instead of a step. */
    private interface Task {
        void run(ProcessGroup group) throws Exception;
    }

    private static CompletableFuture<?> submit(TextEngine generator, Task task) {
        StepRequest step =
                new StepRequest(new TokenBatch(List.of())) {
                    @Override
                    List<Sampler.SampledToken> run(ModelRank rank) throws Exception {
                        task.run(rank.group());
                        return List.of();
                    }
                };
        return generator.pool().submit(step);
    }

    /** Waits until prompt tokens are scheduled. */
    public static void awaitStep(TextGenerator generator, long promptTokensBefore) {
        while (generator.statistics().promptTokens() == promptTokensBefore) {
            sleep();
        }
    }

    private static void sleep() {
        try {
            Thread.sleep(5);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void takesTheMostProbableTokens() throws Exception {
        LlamaReference reference = new LlamaReference(directory);
        int[] sequence = prompt(7, 1);
        List<Double> logProbabilities = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            double[] logits = reference.logits(sequence)[sequence.length - 1];
            int best =
                    IntStream.range(0, logits.length)
                            .reduce(0, (a, b) -> logits[b] > logits[a] ? b : a);
            double sum = Arrays.stream(logits).map(Math::exp).sum();
            logProbabilities.add(logits[best] - Math.log(sum));
            sequence = Arrays.copyOf(sequence, sequence.length + 1);
            sequence[sequence.length - 1] = best;
        }
        try (TextGenerator generator = generator(2, builder -> builder)) {
            Generation generation =
                    generator.submit(request(prompt(7, 1)).optMaxTokens(12).build());
            List<GeneratedPiece> pieces = generation.await(LONG);
            assertArrayEquals(Arrays.copyOfRange(sequence, 7, 19), tokens(pieces));
            for (int i = 0; i < 12; i++) {
                assertEquals(logProbabilities.get(i), pieces.get(i).logProbability(), 1e-4);
            }
            assertEquals(FinishReason.LENGTH, generation.finishReason().orElseThrow());
            assertEquals(7, generation.promptTokens());
            assertEquals(12, generation.generatedTokens());
            assertNull(generation.next(LONG));
            assertIdle(generator);
            GeneratorStatistics statistics = generator.statistics();
            assertEquals(7, statistics.promptTokens());
            assertEquals(12, statistics.generatedTokens());
            assertEquals(1, statistics.finished());
        }
    }

    /** Requests with different parameters. */
    static List<GenerationRequest> manyRequests() {
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < 16; i++) {
            GenerationRequest.Builder builder =
                    request(prompt(1 + i * 7 % 90, i)).optMaxTokens(3 + i * 5 % 17).optSeed(i);
            if (i % 4 > 0) {
                builder.optTemperature(0.5 + i % 3);
            }
            builder.optTopK(i % 5 == 0 ? 10 : 0).optTopP(i % 3 == 0 ? 0.8 : 1);
            builder.optRepetitionPenalty(i % 6 == 0 ? 1.3 : 1);
            requests.add(builder.build());
        }
        return requests;
    }

    @Test
    void givesTheSameTokensAloneAndInABatch() throws Exception {
        List<int[]> alone = new ArrayList<>();
        try (TextGenerator generator = generator(1, builder -> builder)) {
            for (GenerationRequest request : manyRequests()) {
                alone.add(tokens(generator.submit(request).await(LONG)));
            }
        }
        // Prompts are read in parts; five at most join and leave.
        try (TextGenerator generator =
                generator(2, builder -> builder.optMaxRunning(5).optPrefillTokens(33))) {
            List<Generation> together = manyRequests().stream().map(generator::submit).toList();
            for (int i = 0; i < together.size(); i++) {
                assertArrayEquals(alone.get(i), tokens(together.get(i).await(LONG)), "of " + i);
            }
            assertIdle(generator);
        }
        long different = alone.stream().map(Arrays::toString).distinct().count();
        assertEquals(alone.size(), different);
    }

    private static double[] logProbabilities(double[] logits) {
        double sum = Math.log(Arrays.stream(logits).map(Math::exp).sum());
        return Arrays.stream(logits).map(logit -> logit - sum).toArray();
    }

    private static void check(GeneratedPiece piece, double[] logits, int top) {
        double[] expected = logProbabilities(logits);
        int[] best =
                IntStream.range(0, logits.length)
                        .boxed()
                        .sorted(Comparator.comparing(token -> -logits[token]))
                        .limit(top)
                        .mapToInt(Integer::intValue)
                        .toArray();
        assertEquals(expected[piece.token()], piece.logProbability(), 1e-4);
        assertArrayEquals(
                best,
                piece.topLogProbabilities().stream()
                        .mapToInt(TokenLogProbability::token)
                        .toArray());
        for (TokenLogProbability each : piece.topLogProbabilities()) {
            assertEquals(expected[each.token()], each.logProbability(), 1e-4);
        }
    }

    /** Penalties, biases and forbidden tokens, against logits in float64. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void editsLogitsBeforeItTakesTheMostProbable(int ranks) throws Exception {
        LlamaReference reference = new LlamaReference(directory);
        int[] prompt = prompt(9, 4);
        int stop = 100;
        Map<Integer, Double> bias = Map.of(stop, 50.0, prompt[0], 6.0, 7, -2.0, 31, 5.5);
        int[] sequence = prompt;
        List<double[]> all = new ArrayList<>();
        int[] counts = new int[ByteTokens.VOCABULARY];
        for (int i = 0; i < 20; i++) {
            double[] logits = reference.logits(sequence)[sequence.length - 1];
            int best = 0;
            double highest = Double.NEGATIVE_INFINITY;
            for (int token = 0; token < logits.length; token++) {
                int of = token;
                double edited = logits[token] + bias.getOrDefault(token, 0.0);
                if (counts[token] > 0 || Arrays.stream(prompt).anyMatch(each -> each == of)) {
                    edited = edited > 0 ? edited / 1.25 : edited * 1.25;
                }
                edited -= 0.5 * counts[token] + (counts[token] > 0 ? 0.25 : 0);
                boolean isForbidden = token == stop && i < 19;
                if (edited > highest && !isForbidden) {
                    highest = edited;
                    best = token;
                }
            }
            all.add(logits);
            counts[best]++;
            sequence = Arrays.copyOf(sequence, sequence.length + 1);
            sequence[sequence.length - 1] = best;
        }
        assertTrue(Arrays.stream(counts).max().getAsInt() > 1, "the frequency counts");
        try (TextGenerator generator = generator(ranks, builder -> builder)) {
            Generation generation =
                    generator.submit(
                            request(prompt)
                                    .optMaxTokens(30)
                                    .optStopTokens(stop)
                                    .optMinTokens(19)
                                    .optRepetitionPenalty(1.25)
                                    .optFrequencyPenalty(0.5)
                                    .optPresencePenalty(0.25)
                                    .optLogitBias(bias)
                                    .optTopLogProbabilities(4)
                                    .build());
            List<GeneratedPiece> pieces = generation.await(LONG);
            assertArrayEquals(Arrays.copyOfRange(sequence, 9, 29), tokens(pieces));
            assertEquals(FinishReason.STOP, generation.finishReason().orElseThrow());
            for (int i = 0; i < pieces.size(); i++) {
                check(pieces.get(i), all.get(i), 4);
            }
        }
    }

    /** Beside another request, and with prefixes that the cache has. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void promptsHaveLogProbabilities(int ranks) throws Exception {
        LlamaReference reference = new LlamaReference(directory);
        int[] prompt = prompt(75, 8);
        double[][] logits = reference.logits(prompt);
        try (TextGenerator generator = generator(ranks, builder -> builder.optPrefillTokens(33))) {
            Generation other = generator.submit(request(prompt).optMaxTokens(40).build());
            awaitStep(generator, 0);
            GenerationRequest.Builder request = request(prompt).optMaxTokens(3);
            Generation generation =
                    generator.submit(
                            request.optPromptLogProbabilities(true)
                                    .optTopLogProbabilities(2)
                                    .build());
            List<GeneratedPiece> pieces = generation.await(LONG);
            assertEquals(3, pieces.size());
            check(pieces.get(0), logits[74], 2);
            assertEquals(0, generation.cachedTokens());
            List<GeneratedPiece> promptPieces = generation.promptPieces();
            assertArrayEquals(prompt, tokens(promptPieces));
            assertTrue(Float.isNaN(promptPieces.get(0).logProbability()));
            for (int i = 1; i < prompt.length; i++) {
                check(promptPieces.get(i), logits[i - 1], 2);
            }
            assertEquals(40, other.await(LONG).size());
            assertEquals(List.of(), other.promptPieces());
            assertIdle(generator);
        }
    }

    @Test
    void choicesShareThePromptOfACall() throws Exception {
        try (TextGenerator generator = generator(2, builder -> builder)) {
            int[] prompt = prompt(70, 2);
            List<GenerationRequest> requests = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                requests.add(request(prompt).optTemperature(1).optSeed(i).optMaxTokens(8).build());
            }
            requests.add(request(prompt(70, 3)).build());
            List<Generation> choices = generator.submitAll(requests);
            for (Generation choice : choices) {
                choice.await(LONG);
            }
            assertEquals(
                    List.of(0, 64, 64, 64, 0),
                    choices.stream().map(Generation::cachedTokens).toList());
            assertEquals(3 * 64, generator.statistics().prefixCacheHits());
            choices = generator.submitAll(requests.subList(0, 3));
            choices.get(0).cancel(); // The others do not wait for it.
            assertEquals(8, choices.get(1).await(LONG).size());
            assertEquals(8, choices.get(2).await(LONG).size());
            assertIdle(generator);
        }
    }

    @Test
    void drawsOtherTokensWithOtherSeeds() throws Exception {
        try (TextGenerator generator = generator(1, builder -> builder)) {
            GenerationRequest.Builder builder = request(1, 2).optTemperature(1).optMaxTokens(20);
            int[] first = tokens(generator.submit(builder.optSeed(1).build()).await(LONG));
            int[] other = tokens(generator.submit(builder.optSeed(2).build()).await(LONG));
            assertNotEquals(Arrays.toString(first), Arrays.toString(other));
        }
    }

    @Test
    void stopsAtTokens() throws Exception {
        try (TextGenerator generator = generator(2, builder -> builder)) {
            int[] all =
                    tokens(generator.submit(request(1, 2, 3).optMaxTokens(20).build()).await(LONG));
            int stop = all[5];
            int first =
                    IntStream.range(0, 20).filter(i -> all[i] == stop).findFirst().orElseThrow();
            Generation generation =
                    generator.submit(request(1, 2, 3).optMaxTokens(20).optStopTokens(stop).build());
            List<GeneratedPiece> pieces = generation.await(LONG);
            assertArrayEquals(Arrays.copyOf(all, first + 1), tokens(pieces));
            assertEquals(FinishReason.STOP, generation.finishReason().orElseThrow());
        }
    }

    @Test
    void stopsAtStringsOfItsText() throws Exception {
        try (TextGenerator generator = generator(2, builder -> builder)) {
            GenerationRequest.Builder builder =
                    GenerationRequest.builder()
                            .setPrompt("How?")
                            .optIgnoreEndOfText(true)
                            .optMaxTokens(60)
                            .optSeed(4)
                            .optTemperature(1);
            List<GeneratedPiece> pieces = generator.submit(builder.build()).await(LONG);
            String all = text(pieces);
            assertEquals(generator.tokenizer().orElseThrow().decode(tokens(pieces)), all);
            String stop = all.substring(all.length() / 2, all.length() / 2 + 2);
            Generation generation =
                    generator.submit(builder.optStopStrings(List.of("no such", stop)).build());
            String until = text(generation.await(LONG));
            assertEquals(all.substring(0, all.indexOf(stop)), until);
            assertEquals(FinishReason.STOP_STRING, generation.finishReason().orElseThrow());
            assertEquals(5, generation.promptTokens()); // with the one that begins a text
        }
    }

    @Test
    void givesPiecesAsTheyCome() throws Exception {
        try (TextEngine generator = generator(1, builder -> builder)) {
            CountDownLatch held = hold(generator);
            Generation generation = generator.submit(request(1).optMaxTokens(30).build());
            AtomicInteger told = new AtomicInteger();
            CountDownLatch ended = new CountDownLatch(1);
            generation.onProgress(
                    () -> {
                        told.incrementAndGet();
                        if (generation.finishReason().isPresent()) {
                            ended.countDown();
                            throw new IllegalStateException("a listener's, which does no harm");
                        }
                    });
            held.countDown();
            int count = 0;
            while (generation.next(LONG) != null) {
                count++;
            }
            assertEquals(30, count);
            ended.await();
            assertEquals(30, told.get());
        }
    }

    @Test
    void cancellingFreesOnlyItsOwnBlocks() throws Exception {
        try (TextEngine generator = generator(2, builder -> builder.optMaxRunning(3))) {
            GenerationRequest some = request(1, 2).optMaxTokens(40).build();
            int[] expected = tokens(generator.submit(some).await(LONG));
            CountDownLatch held = hold(generator);
            List<Generation> others = new ArrayList<>();
            List<Generation> cancelled = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                others.add(generator.submit(some));
                cancelled.add(generator.submit(some));
            }
            awaitStep(generator, 2); // One runs at least; others wait.
            cancelled.forEach(Generation::cancel);
            cancelled.forEach(Generation::cancel);
            held.countDown();
            for (Generation generation : cancelled) {
                assertEquals(FinishReason.CANCELLED, generation.finishReason().orElseThrow());
                generation.await(Duration.ZERO);
                assertNull(generation.next(Duration.ZERO));
            }
            for (Generation generation : others) {
                assertArrayEquals(expected, tokens(generation.await(LONG)));
            }
            assertIdle(generator);
            assertEquals(4, generator.statistics().cancelled());
            assertEquals(5, generator.statistics().finished());
        }
    }

    @Test
    void refusesOneRequestAndServesTheNext() throws Exception {
        try (TextEngine generator =
                generator(
                        2, builder -> builder.optMaxLength(64).optMaxQueued(2).optMaxRunning(1))) {
            refuse(
                    generator,
                    "60 tokens and maxTokens is 5",
                    request(prompt(60, 1)).optMaxTokens(5));
            refuse(generator, "maxLength 64", request(1).optMaxTokens(Integer.MAX_VALUE));
            refuse(generator, "token id 258", request(1, 258).optMaxTokens(5));
            refuse(generator, "token id -1", request(-1).optMaxTokens(5));
            refuse(
                    generator,
                    "token id 258 of stopTokens is out of range: the vocabulary has 258 tokens",
                    request(1).optStopTokens(7, 258).optMaxTokens(5));
            refuse(generator, "token id -1 of stop", request(1).optStopTokens(-1).optMaxTokens(5));
            String none =
                    assertThrows(IllegalArgumentException.class, () -> generator.submit(null))
                            .getMessage();
            assertTrue(none.contains("is null"), none);
            GenerationRequest good = request(prompt(59, 1)).optMaxTokens(5).build();
            for (List<GenerationRequest> wrong :
                    List.of(List.of(good, request(258).build()), List.of(good, good, good))) {
                assertThrows(IllegalArgumentException.class, () -> generator.submitAll(wrong));
            }
            assertEquals(0, generator.statistics().queued() + generator.statistics().running());
            assertThrows(IllegalArgumentException.class, () -> generator.submitAll(List.of()));
            assertThrows(IllegalArgumentException.class, () -> generator.submitAll(null));
            for (Generation both : generator.submitAll(List.of(good, good))) {
                assertEquals(5, both.await(LONG).size());
            }
            assertEquals(5, generator.submit(good).await(LONG).size());
            GenerationRequest longOne = request(1).optMaxTokens(63).build();
            List<Generation> accepted = new ArrayList<>();
            CountDownLatch held = hold(generator);
            accepted.add(generator.submit(longOne));
            awaitStep(generator, 3 * 59); // It waits no longer.
            accepted.add(generator.submit(longOne));
            accepted.add(generator.submit(longOne));
            RejectedExecutionException full =
                    assertThrows(RejectedExecutionException.class, () -> generator.submit(longOne));
            assertTrue(full.getMessage().contains("2 of at most 2 requests"), full.getMessage());
            // Those that wait count, while the ranks are still at a step; cancelled ones do not.
            Generation last = accepted.remove(accepted.size() - 1);
            last.cancel();
            accepted.add(generator.submit(longOne));
            assertThrows(RejectedExecutionException.class, () -> generator.submit(longOne));
            held.countDown();
            for (Generation generation : accepted) {
                assertEquals(63, generation.await(LONG).size());
            }
            assertIdle(generator);
        }
    }

    private static void refuse(
            TextGenerator generator, String problem, GenerationRequest.Builder request) {
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> generator.submit(request.build()))
                        .getMessage();
        assertTrue(message.contains(problem), message);
    }

    @Test
    void waitsNoLongerThanAsked() throws Exception {
        try (TextEngine generator = generator(1, builder -> builder)) {
            CountDownLatch held = hold(generator);
            Generation generation = generator.submit(request(1).optMaxTokens(2).build());
            Duration brief = Duration.ofMillis(1);
            Exception late = assertThrows(TimeoutException.class, () -> generation.await(brief));
            assertTrue(late.getMessage().contains("0.001 s"), late.getMessage());
            assertThrows(TimeoutException.class, () -> generation.next(brief));
            assertThrows(TimeoutException.class, () -> generation.next(Duration.ZERO));
            held.countDown();
            assertEquals(2, generation.await(Duration.ofSeconds(Long.MAX_VALUE)).size());
        }
    }

    /** Makes a rank fail, in the next task. */
    public static CompletableFuture<?> breakRank(TextEngine generator) {
        return submit(
                generator,
                group -> {
                    if (group.rank() == 1) {
                        throw new IllegalStateException("rank 1 fell over");
                    }
                });
    }

    @Test
    void failsWhatIsPendingWhenARankFailsAndLoadsTheModelAgain() throws Exception {
        try (TextEngine generator = generator(2, builder -> builder.optMaxRunning(2))) {
            GenerationRequest some = request(3, 4).optMaxTokens(10).build();
            int[] expected = tokens(generator.submit(some).await(LONG));
            List<Generation> pending = new ArrayList<>();
            CountDownLatch held = hold(generator);
            for (int i = 0; i < 4; i++) {
                pending.add(generator.submit(request(1).optMaxTokens(255).build()));
            }
            awaitStep(generator, 2); // One runs at least; others wait.
            breakRank(generator);
            held.countDown();
            for (Generation generation : pending) {
                EngineException failure =
                        assertThrows(EngineException.class, () -> generation.await(LONG));
                assertTrue(failure.getMessage().contains("rank 1 fell over"), failure.getMessage());
                assertEquals(FinishReason.ERROR, generation.finishReason().orElseThrow());
                assertTrue(generation.failure().isPresent());
            }
            assertArrayEquals(expected, tokens(generator.submit(some).await(LONG)));
            assertTrue(generator.unavailabilityCause().isEmpty());
            assertEquals(1, generator.statistics().reloads());
            assertEquals(4, generator.statistics().failed());
            assertIdle(generator);
        }
    }

    /** Makes a rank fail while a request runs. Returns the request's error message. */
    static String failWhileServing(TextEngine generator) throws Exception {
        long before = generator.statistics().promptTokens();
        CountDownLatch held = hold(generator);
        Generation generation = generator.submit(request(1).optMaxTokens(200).build());
        awaitStep(generator, before);
        breakRank(generator);
        held.countDown();
        return assertThrows(EngineException.class, () -> generation.await(LONG)).getMessage();
    }

    /** Waits until the model is loaded again, on other ranks. */
    private static void awaitOther(TextEngine generator, RankPool<?, ?> ranks) {
        while (generator.pool() == ranks) {
            assertEquals(Optional.empty(), generator.unavailabilityCause());
            sleep();
        }
    }

    @Test
    void isLostIfARankFailsAgainBeforeARequestWasServed() throws Exception {
        try (TextEngine generator = generator(2, builder -> builder)) {
            RankPool<?, ?> first = generator.pool();
            failWhileServing(generator);
            awaitOther(generator, first);
            String reason = failWhileServing(generator);
            assertTrue(reason.contains("rank 1 fell over"), reason);
            while (generator.unavailabilityCause().isEmpty()) {
                assertEquals(1, generator.statistics().reloads());
                sleep(); // The request fails before.
            }
            String cause = generator.unavailabilityCause().get();
            assertTrue(cause.contains("has failed again after the model was reloaded"), cause);
            assertTrue(cause.contains("rank 1 fell over"), cause);
            Exception refused =
                    assertThrows(
                            IllegalStateException.class,
                            () -> generator.submit(request(1).build()));
            assertEquals(cause, refused.getMessage());
            assertEquals(1, generator.statistics().reloads());
            assertEquals(2, generator.statistics().failed());
            assertIdle(generator);
        }
        assertNoThreads();
    }

    @Test
    void isLoadedAgainWheneverARequestWasServedBetween() throws Exception {
        try (TextEngine generator = generator(2, builder -> builder)) {
            GenerationRequest some = request(3, 4).optMaxTokens(10).build();
            int[] expected = tokens(generator.submit(some).await(LONG));
            for (int i = 1; i <= 3; i++) {
                RankPool<?, ?> before = generator.pool();
                failWhileServing(generator);
                awaitOther(generator, before);
                assertArrayEquals(expected, tokens(generator.submit(some).await(LONG)));
                assertEquals(i, generator.statistics().reloads());
            }
            assertTrue(generator.unavailabilityCause().isEmpty());
            assertIdle(generator);
        }
    }

    @Test
    void servesARequestThatComesAfterARankFailedUnnoticed() throws Exception {
        try (TextEngine generator = generator(2, builder -> builder)) {
            assertThrows(CompletionException.class, breakRank(generator)::join);
            Generation generation = generator.submit(request(1).optMaxTokens(3).build());
            assertEquals(3, generation.await(LONG).size());
            assertEquals(1, generator.statistics().reloads());
        }
    }

    @Test
    void isLostIfItCannotBeLoadedAgain(@TempDir Path other) throws Exception {
        LlamaFiles.write(other, LlamaFiles.config(ScalarType.FLOAT32, true), 1);
        try (TextEngine generator = generator(2, builder -> builder.setDirectory(other))) {
            try (var files = Files.list(other)) {
                for (Path file : files.toList()) {
                    Files.delete(file);
                }
            }
            assertThrows(CompletionException.class, breakRank(generator)::join);
            Generation generation = generator.submit(request(1).optMaxTokens(3).build());
            assertThrows(EngineException.class, () -> generation.await(LONG));
            String cause = generator.unavailabilityCause().orElseThrow();
            assertTrue(cause.contains("could not be reloaded"), cause);
            Exception refused =
                    assertThrows(
                            IllegalStateException.class,
                            () -> generator.submit(request(1).build()));
            assertEquals(cause, refused.getMessage());
            assertIdle(generator);
        }
    }

    @Test
    void serves64CallersAtOnce() throws Exception {
        try (TextGenerator generator = generator(2, builder -> builder)) {
            List<int[]> expected = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                expected.add(
                        tokens(
                                generator
                                        .submit(request(i, 9).optMaxTokens(8).build())
                                        .await(LONG)));
            }
            CountDownLatch go = new CountDownLatch(1);
            List<CompletableFuture<int[]>> callers = new ArrayList<>();
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < 64; i++) {
                GenerationRequest request = request(i % 4, 9).optMaxTokens(8).build();
                CompletableFuture<int[]> result = new CompletableFuture<>();
                callers.add(result);
                threads.add(
                        new Thread(
                                () -> {
                                    try {
                                        go.await();
                                        result.complete(
                                                tokens(generator.submit(request).await(LONG)));
                                    } catch (Exception e) {
                                        result.completeExceptionally(e);
                                    }
                                }));
            }
            threads.forEach(Thread::start);
            go.countDown();
            for (int i = 0; i < 64; i++) {
                assertArrayEquals(expected.get(i % 4), callers.get(i).get());
            }
            assertIdle(generator);
        }
    }

    @Test
    void goesOnWhenAllAreCancelledAsTheyBegin() throws Exception {
        try (TextEngine generator = generator(1, builder -> builder)) {
            GenerationRequest some = request(1).optMaxTokens(3).build();
            synchronized (generator.pool()) { // The engine queries it before a step.
                Generation generation = generator.submit(some);
                while (generator.statistics().running() == 0) {
                    sleep();
                }
                generation.cancel();
            }
            assertEquals(3, generator.submit(some).await(LONG).size());
            assertIdle(generator);
        }
    }

    @Test
    void listenersMayThrow() throws Exception {
        try (TextEngine generator = generator(1, builder -> builder)) {
            CountDownLatch held = hold(generator);
            Generation one = generator.submit(request(1, 2).optMaxTokens(3).build());
            one.onProgress(
                    () -> {
                        throw new AssertionError("made up");
                    });
            Generation other = generator.submit(request(3, 4).optMaxTokens(3).build());
            held.countDown();
            assertEquals(3, one.await(LONG).size());
            assertEquals(3, other.await(LONG).size());
            assertEquals(Optional.empty(), generator.unavailabilityCause());
        }
    }

    @Test
    void closingCancelsAndEndsItsThreads() throws Exception {
        TextEngine generator = generator(2, builder -> builder);
        CountDownLatch held = hold(generator);
        Generation generation = generator.submit(request(1).optMaxTokens(255).build());
        CompletableFuture<Throwable> inListener = new CompletableFuture<>();
        generation.onProgress(
                () -> {
                    try {
                        generator.close();
                    } catch (IllegalStateException e) {
                        inListener.complete(e);
                    }
                });
        Thread release =
                new Thread(
                        () -> {
                            while (generator.unavailabilityCause().isEmpty()) {
                                sleep();
                            }
                            held.countDown();
                        });
        release.start();
        generator.close();
        generator.close();
        assertTrue(inListener.get().getMessage().contains("listener"));
        assertEquals(FinishReason.CANCELLED, generation.finishReason().orElseThrow());
        assertThrows(IllegalStateException.class, () -> generator.submit(request(1).build()));
        assertTrue(generator.unavailabilityCause().orElseThrow().contains("closed"));
        assertNoThreads();
    }

    private static void assertNoThreads() {
        String name = "engine-" + directory.getFileName();
        assertFalse(
                Thread.getAllStackTraces().keySet().stream()
                        .anyMatch(thread -> thread.getName().startsWith(name)));
    }

    @Test
    void freesEverythingIfTheProgressListenerThrows() {
        for (String method : List.of("reset", "increment", "end")) {
            Progress failing =
                    (Progress)
                            Proxy.newProxyInstance(
                                    Progress.class.getClassLoader(),
                                    new Class<?>[] {Progress.class},
                                    (proxy, called, values) -> {
                                        if (called.getName().equals(method)) {
                                            throw new IllegalStateException("made up");
                                        }
                                        return null;
                                    });
            RuntimeException e =
                    assertThrows(
                            RuntimeException.class,
                            () -> generator(2, builder -> builder.optProgress(failing)));
            assertTrue(e.getMessage().contains("made up"), e.getMessage());
            assertNoThreads();
        }
    }

    @Test
    void aTokenizerThatFailsWhileWeightsAreReadLeavesNothing(@TempDir Path folder)
            throws IOException {
        ByteTokens.writeModel(folder, 3);
        Path file = folder.resolve("tokenizer.json");
        Files.write(file, Arrays.copyOf(Files.readAllBytes(file), 50));
        String name = folder.getFileName().toString();
        AtomicLong read = new AtomicLong();
        Progress progress =
                (Progress)
                        Proxy.newProxyInstance(
                                Progress.class.getClassLoader(),
                                new Class<?>[] {Progress.class},
                                (proxy, called, values) -> {
                                    while (isRunning("tokenizer-" + name)) {
                                        sleep();
                                    }
                                    read.incrementAndGet();
                                    return null;
                                });
        TextEngine.Builder builder =
                TextEngine.builder().setDirectory(folder).optProgress(progress);
        String message = assertThrows(IllegalArgumentException.class, builder::build).getMessage();
        assertTrue(message.contains(file + " is not a valid tokenizer"), message);
        assertTrue(read.get() > 0);
        assertFalse(isRunning(name));
        assertFalse(Files.readString(Path.of("/proc/self/maps")).contains(name));
    }

    private static boolean isRunning(String name) {
        return Thread.getAllStackTraces().keySet().stream()
                .anyMatch(thread -> thread.getName().contains(name));
    }

    @Test
    void closingFreesTheCache() throws Exception {
        long cache = 64L << 20; // on each of two ranks
        UnaryOperator<TextEngine.Builder> large = builder -> builder.optCacheBytes(cache);
        for (int i = 0; i < 4; i++) {
            List<long[]> before = mappings(0);
            List<long[]> opened;
            try (TextGenerator generator = generator(2, large)) {
                assertTrue(generator.statistics().cacheBytes() > cache * 9 / 10);
                generator.submit(request(1).optMaxTokens(3).build()).await(LONG);
                opened = new ArrayList<>(mappings(cache * 9 / 10));
            }
            // The JVM's heap grows within addresses that it has reserved before.
            opened.removeIf(range -> isMapped(before, range[0]));
            assertFalse(opened.isEmpty());
            List<long[]> after = mappings(cache * 9 / 10);
            opened.forEach(range -> assertFalse(isMapped(after, range[0])));
        }
    }

    private static boolean isMapped(List<long[]> ranges, long address) {
        return ranges.stream().anyMatch(range -> range[0] <= address && address < range[1]);
    }

    /** Returns the addresses of writable anonymous mappings of so many bytes or more; 0: of all. */
    private static List<long[]> mappings(long bytes) throws IOException {
        return Files.readAllLines(Path.of("/proc/self/maps")).stream()
                .map(line -> line.split(" +"))
                .filter(words -> bytes == 0 || words[1].startsWith("rw") && words.length == 5)
                .map(words -> words[0].split("-"))
                .filter(range -> range[0].length() < 16) // not the kernel's
                .map(range -> new long[] {parse(range[0]), parse(range[1])})
                .filter(range -> range[1] - range[0] >= bytes)
                .toList();
    }

    private static long parse(String address) {
        return Long.parseLong(address, 16);
    }

    @Test
    void saysHowLoadingGoes() throws Exception {
        AtomicLong max = new AtomicLong();
        AtomicLong done = new AtomicLong();
        Progress progress =
                new Progress() {
                    @Override
                    public void reset(String message, long size, String trailing) {
                        max.set(size);
                        assertTrue(
                                trailing.endsWith(" MB of weights on each of 2 ranks"), trailing);
                    }

                    @Override
                    public void start(long initial) {}

                    @Override
                    public void end() {
                        assertEquals(max.get(), done.get());
                        max.set(-1);
                    }

                    @Override
                    public void increment(long increment) {
                        done.addAndGet(increment);
                    }

                    @Override
                    public void update(long value, String message) {}
                };
        generator(2, builder -> builder.optProgress(progress)).close();
        assertEquals(-1, max.get());
    }

    @Test
    void refusesWhatCannotBeSetUp() {
        refuse("3 ranks", builder -> builder.optRanks(3));
        refuse("ranks", builder -> builder.optRanks(0));
        refuse("at most 256 positions", builder -> builder.optMaxLength(257));
        refuse("maxLength", builder -> builder.optMaxLength(-1));
        refuse("too small", builder -> builder.optCacheBytes(100));
        refuse("gpuMemoryUtilization", builder -> builder.optGpuMemoryUtilization(0));
        refuse("gpuMemoryUtilization", builder -> builder.optGpuMemoryUtilization(1.1));
        refuse("maxRunning", builder -> builder.optMaxRunning(0));
        refuse("maxQueued", builder -> builder.optMaxQueued(0));
        refuse("prefillTokens", builder -> builder.optPrefillTokens(0));
        refuse("not a GPU", builder -> builder.optDevices(List.of(Device.cpu())));
        refuse("directory is null", builder -> builder.setDirectory(null));
        refuse("name is null", builder -> builder.setModel(null));
        ProcessGroup group = ProcessGroups.local(1).get(0);
        refuse("with a process group", builder -> builder.optProcessGroup(group).optRanks(1));
        assertThrows(IllegalStateException.class, group::barrier); // It is destroyed.
        assertThrows(
                IOException.class,
                () -> generator(1, builder -> builder.setDirectory(directory.resolve("none"))));
    }

    private static void refuse(String problem, Consumer<TextEngine.Builder> change) {
        TextEngine.Builder builder = TextEngine.builder().setDirectory(directory);
        change.accept(builder);
        String message = assertThrows(IllegalArgumentException.class, builder::build).getMessage();
        assertTrue(message.contains(problem), message);
    }
}
