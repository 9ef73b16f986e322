// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.RejectedExecutionException;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.sampling.Sampler;
import org.djlx.llm.sampling.SamplingParameters;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Scheduling without a model. The test appends the tokens. */
class SchedulerTest {

    private static final int BLOCK = KvCache.BLOCK_TOKENS;
    private static final int STOP = 9;

    private static Scheduler scheduler(int maxRunning, int maxQueued, int blocks) {
        return scheduler(maxRunning, maxQueued, blocks, 100, true);
    }

    private static Scheduler scheduler(
            int maxRunning, int maxQueued, int blocks, int prefillTokens, boolean prefixCaching) {
        return scheduler(maxRunning, maxQueued, blocks, prefillTokens, prefixCaching, false);
    }

    private static Scheduler scheduler(
            int maxRunning,
            int maxQueued,
            int blocks,
            int prefillTokens,
            boolean prefixCaching,
            boolean batchInvariant) {
        return new Scheduler(
                new GeneratorSettings(
                        Quantization.NONE,
                        null,
                        List.of(),
                        1,
                        512,
                        maxRunning,
                        maxQueued,
                        0,
                        0.9,
                        prefixCaching,
                        batchInvariant,
                        prefillTokens,
                        Duration.ofSeconds(1),
                        null),
                blocks);
    }

    private static Sequence sequence(int prompt, int maxTokens) {
        return sequence(prompt, maxTokens, GenerationRequest.builder());
    }

    private static Sequence sequence(int prompt, int maxTokens, GenerationRequest.Builder builder) {
        return sequence(prompt, maxTokens, builder, new PieceQueue(prompt, () -> {}));
    }

    private static Sequence sequence(
            int prompt, int maxTokens, GenerationRequest.Builder builder, PieceQueue queue) {
        int[] tokens = IntStream.rangeClosed(1, prompt).map(i -> 100 + i).toArray();
        GenerationRequest request = builder.setPromptTokens(tokens).optMaxTokens(maxTokens).build();
        return new Sequence(request, tokens, null, Set.of(STOP), 0, queue);
    }

    private static Sampler.SampledToken token(int token) {
        return new Sampler.SampledToken(token, 0);
    }

    /** Describes a chunk: its first token, its start, and its number of tokens. */
    private static String text(TokenBatch.Chunk chunk) {
        return chunk.tokens()[0] + "@" + chunk.start() + "x" + chunk.tokens().length;
    }

    private static List<String> next(Scheduler scheduler, List<Sequence> sampled) {
        sampled.clear();
        return scheduler.schedule(sampled).chunks().stream().map(SchedulerTest::text).toList();
    }

    @Test
    void requestsRunInTheirOrderWhenTheCacheHasRoom() {
        Scheduler scheduler = scheduler(2, 3, 3);
        assertFalse(scheduler.admit());
        Sequence large = sequence(2 * BLOCK, BLOCK);
        Sequence other = sequence(BLOCK, BLOCK);
        Sequence small = sequence(1, 1);
        scheduler.addAll(List.of(large, other, small));
        assertTrue(scheduler.admit());
        assertEquals(2, large.blocks().size());
        // A block would be free, but the running sequence may need it soon.
        assertEquals(Arrays.asList(large, other, small), scheduler.all());
        assertEquals(List.of(), other.blocks());
        large.queue.cancel();
        scheduler.removeEnded();
        assertTrue(scheduler.admit());
        assertEquals(1, other.blocks().size());
        assertEquals(1, small.blocks().size());
        GeneratorStatistics statistics = statistics(scheduler);
        assertEquals(1, statistics.cancelled());
        assertEquals(2, statistics.cacheBlocksInUse());
        assertEquals(2, statistics.running());
    }

    /**
     * The cache of Llama 3 8B in bfloat16 on a GPU of 80 GB, with 18 GB of weights and activations.
     */
    @Test
    void sixtyFourChatsWithoutALimitRunAtOnce() {
        int bytesPerToken = 2 * 32 * 8 * 128 * 2;
        int blocks = (int) (62_000_000_000L * 9 / 10 / (bytesPerToken * BLOCK));
        Scheduler scheduler = scheduler(256, 64, blocks, 4096, false);
        List<Sequence> sampled = new ArrayList<>();
        for (int i = 0; i < 64; i++) {
            scheduler.addAll(List.of(sequence(200, 8192 - 200)));
        }
        for (int step = 0; step < 6000; step++) {
            scheduler.admit();
            next(scheduler, sampled);
            sampled.forEach(sequence -> sequence.append(token(5)));
        }
        assertEquals(64, sampled.size());
        assertEquals(64, statistics(scheduler).running());
        assertEquals(0, statistics(scheduler).preemptions());
    }

    @Test
    void tokensWithTheSameAdapterAreAdjacent() {
        Scheduler scheduler = scheduler(8, 8, 9);
        List<Sequence> sequences = new ArrayList<>();
        for (int adapter : new int[] {2, 0, 1, 2, 1}) {
            int[] prompt = {adapter};
            GenerationRequest request =
                    GenerationRequest.builder().setPromptTokens(prompt).optMaxTokens(5).build();
            PieceQueue queue = new PieceQueue(1, () -> {});
            sequences.add(new Sequence(request, prompt, null, Set.of(STOP), adapter, queue));
        }
        scheduler.addAll(sequences);
        scheduler.admit();
        List<Sequence> sampled = new ArrayList<>();
        for (int step = 0; step < 3; step++) {
            sampled.clear();
            List<TokenBatch.Chunk> chunks = scheduler.schedule(sampled).chunks();
            assertEquals(
                    List.of(0, 1, 1, 2, 2),
                    chunks.stream().map(TokenBatch.Chunk::adapter).toList());
            assertEquals(List.of(1, 2, 4, 0, 3), sampled.stream().map(sequences::indexOf).toList());
            sampled.forEach(sequence -> sequence.append(token(5)));
        }
    }

    @Test
    void onlyChoicesThatShareBlocksWaitForTheirPrompt() {
        for (boolean listed : new boolean[] {false, true}) {
            Scheduler scheduler = scheduler(8, 2, 3);
            List<Sequence> choices = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                choices.add(
                        sequence(
                                BLOCK,
                                1,
                                GenerationRequest.builder().optPromptLogProbabilities(listed)));
            }
            choices.get(1).awaitPrompt(choices.get(0));
            scheduler.addAll(choices);
            scheduler.admit();
            assertEquals(listed ? 2 : 1, statistics(scheduler).running());
        }
    }

    private static GeneratorStatistics statistics(Scheduler scheduler) {
        return scheduler.statistics(LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32), 0);
    }

    private static void prefill(Scheduler scheduler, int token, Sequence... sequences) {
        scheduler.addAll(List.of(sequences));
        scheduler.admit();
        scheduler.schedule(new ArrayList<>());
        for (Sequence sequence : sequences) {
            sequence.append(token(token));
        }
    }

    @Test
    void theYoungestIsPreemptedAndComputedAgainAsBefore() {
        Scheduler scheduler = scheduler(8, 8, 6, 10, false);
        Sequence oldest = sequence(BLOCK, 3 * BLOCK);
        Sequence youngest = sequence(BLOCK + 4, 3 * BLOCK);
        List<Sequence> sampled = new ArrayList<>();
        scheduler.addAll(List.of(oldest, youngest));
        scheduler.admit();
        assertEquals(List.of("101@0x10"), next(scheduler, sampled));
        assertEquals(List.of("111@10x6"), next(scheduler, sampled));
        oldest.append(token(5));
        assertEquals(List.of("5@16x1", "101@0x10"), next(scheduler, sampled));
        oldest.append(token(5));
        assertEquals(List.of("5@17x1", "111@10x10"), next(scheduler, sampled));
        int generated = 0;
        while (statistics(scheduler).preemptions() == 0) {
            sampled.forEach(sequence -> sequence.append(token(5)));
            generated += sampled.contains(youngest) ? 1 : 0;
            next(scheduler, sampled);
        }
        assertEquals(List.of(oldest), sampled);
        assertEquals(List.of(), youngest.blocks());
        Sequence late = sequence(1, 1);
        scheduler.addAll(List.of(late));
        assertEquals(List.of(oldest, youngest, late), scheduler.all());
        oldest.append(token(STOP));
        assertFalse(youngest.isTokenPending());
        oldest.queue.end(FinishReason.STOP, null);
        scheduler.removeEnded();
        scheduler.admit();
        // The prompt in the same chunks; then each new token as a chunk, and the next one is
        // sampled.
        assertEquals(List.of("101@0x1", "101@0x10"), next(scheduler, sampled));
        late.append(token(STOP));
        assertEquals(List.of("111@10x10"), next(scheduler, sampled));
        assertEquals(List.of(), sampled);
        int again = 0;
        while (sampled.isEmpty()) {
            List<String> chunks = next(scheduler, sampled);
            assertTrue(chunks.size() <= 10, chunks.toString());
            for (String chunk : chunks) {
                assertEquals("5@" + (BLOCK + 4 + again++) + "x1", chunk);
            }
        }
        assertEquals(generated, again);
        assertEquals(List.of(youngest), sampled);
        GeneratorStatistics statistics = statistics(scheduler);
        assertEquals(1, statistics.preemptions());
        assertEquals(BLOCK + BLOCK + 4 + 1, statistics.promptTokens()); // each once
    }

    /** A queue whose request is cancelled after the scheduler has seen that it runs. */
    private static final class CancelledLate extends PieceQueue {

        private int reads = Integer.MAX_VALUE; // until the request is cancelled

        CancelledLate() {
            super(1, () -> {});
        }

        @Override
        public Optional<FinishReason> finishReason() {
            if (reads-- == 0) {
                cancel();
            }
            return super.finishReason();
        }
    }

    @Test
    void aSequenceThatIsCancelledWhileItGrowsPreemptsNoOlderOne() {
        Scheduler scheduler = scheduler(8, 8, 27, 10, false);
        Sequence oldest = sequence(25 * BLOCK, 1);
        CancelledLate queue = new CancelledLate();
        Sequence youngest = sequence(1, 100, GenerationRequest.builder(), queue);
        List<Sequence> sampled = new ArrayList<>();
        scheduler.addAll(List.of(oldest, youngest));
        scheduler.admit();
        for (int step = 0; step < 2 * BLOCK; step++) {
            assertEquals(2, next(scheduler, sampled).size());
            youngest.append(token(5));
        }
        assertEquals(27, statistics(scheduler).cacheBlocksInUse());
        queue.reads = 2; // of those that have ended, and before it grows
        assertEquals(List.of("421@320x10"), next(scheduler, sampled));
        assertEquals(25, oldest.blocks().size());
        assertEquals(List.of(), youngest.blocks());
        assertEquals(1, statistics(scheduler).running());
    }

    @Test
    void aPreemptedSequenceGetsTheTokenThatIsBeingComputed() {
        Scheduler scheduler = scheduler(8, 8, 4, 100, false);
        Sequence oldest = sequence(2 * BLOCK, 40);
        Sequence youngest = sequence(BLOCK + 1, 10);
        List<Sequence> sampled = new ArrayList<>();
        scheduler.addAll(List.of(oldest));
        scheduler.admit();
        next(scheduler, sampled);
        oldest.append(token(5));
        scheduler.addAll(List.of(youngest));
        assertEquals(2, statistics(scheduler).cacheBlocksInUse());
        scheduler.admit();
        assertEquals(0, youngest.blocks().size()); // It needs two, and one stays free.
        youngest.queue.cancel();
        scheduler.removeEnded();
        Sequence one = sequence(BLOCK, 10);
        scheduler.addAll(List.of(one));
        scheduler.admit();
        next(scheduler, sampled); // The oldest takes the fourth block.
        assertEquals(4, statistics(scheduler).cacheBlocksInUse());
        // The step is in flight; the next one needs a block for the younger sequence.
        assertTrue(one.isTokenPending());
        assertEquals(List.of(TokenBatch.LAST_SAMPLED + "@33x1"), next(scheduler, sampled));
        assertEquals(1, statistics(scheduler).preemptions());
        assertTrue(one.isTokenPending());
        scheduler.admit();
        assertEquals(1, statistics(scheduler).running()); // The token must arrive first.
        one.append(token(6));
        oldest.append(token(7));
        assertFalse(one.isTokenPending());
        oldest.queue.cancel();
        scheduler.removeEnded();
        scheduler.admit();
        assertEquals(List.of("101@0x16"), next(scheduler, sampled));
        assertEquals(List.of("6@16x1"), next(scheduler, sampled));
        assertEquals(List.of(one), sampled);
    }

    @Test
    void blocksOfEqualBeginningsAreShared() {
        Scheduler scheduler = scheduler(8, 8, 20);
        Sequence first = sequence(3 * BLOCK, 4);
        prefill(scheduler, 5, first);
        assertEquals(0, first.queue.cachedTokens());
        Sequence equal = sequence(3 * BLOCK, 4);
        Sequence longer = sequence(3 * BLOCK + 5, 4);
        Sequence brief = sequence(BLOCK, 4);
        List<Sequence> sampled = new ArrayList<>();
        scheduler.addAll(List.of(equal, longer, brief));
        scheduler.admit();
        // The last token is always computed.
        assertEquals(
                List.of("5@48x1", "133@32x16", "149@48x5", "101@0x16"), next(scheduler, sampled));
        assertEquals(2 * BLOCK, equal.queue.cachedTokens());
        assertEquals(3 * BLOCK, longer.queue.cachedTokens());
        assertEquals(0, brief.queue.cachedTokens());
        assertEquals(first.blocks().subList(0, 2), equal.blocks().subList(0, 2));
        assertEquals(first.blocks().subList(0, 3), longer.blocks().subList(0, 3));
        GeneratorStatistics statistics = statistics(scheduler);
        assertEquals(4 + 1 + 1 + 1, statistics.cacheBlocksInUse());
        assertEquals(5 * BLOCK, statistics.prefixCacheHits());
        assertEquals(10 * BLOCK + 5, statistics.prefixCacheQueries());
        assertEquals(10 * BLOCK + 5, statistics.promptTokens());
        for (Sequence sequence : List.of(first, equal, longer, brief)) {
            sequence.queue.cancel();
        }
        scheduler.removeEnded();
        assertEquals(0, statistics(scheduler).cacheBlocksInUse());
        Sequence later = sequence(3 * BLOCK + 1, 4);
        prefill(scheduler, 5, later);
        assertEquals(3 * BLOCK, later.queue.cachedTokens()); // of sequences that have ended
        scheduler.resetCache(20);
        Sequence afterReset = sequence(3 * BLOCK + 1, 4);
        scheduler.addAll(List.of(afterReset));
        scheduler.admit();
        assertEquals(List.of(later, afterReset), scheduler.all());
        assertEquals(0, afterReset.queue.cachedTokens());
        assertEquals(0, later.scheduledTokens());
    }

    @Test
    void theLeastRecentlyUsedBlocksAreEvicted() {
        BlockPool pool = new BlockPool(3);
        BlockHash[] hashes = new BlockHash[3];
        int[] blocks = new int[3];
        for (int i = 0; i < 3; i++) {
            hashes[i] =
                    BlockHash.of(
                            null, new int[] {i, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0);
            blocks[i] = pool.allocate();
            pool.cache(blocks[i], hashes[i]);
        }
        assertEquals(0, pool.free());
        for (int i = 0; i < 3; i++) {
            pool.release(blocks[i]);
        }
        pool.touch(pool.find(hashes[0]));
        pool.release(blocks[0]);
        assertEquals(blocks[1], pool.allocate());
        assertEquals(null, pool.find(hashes[1]));
        assertEquals(blocks[2], pool.find(hashes[2]));
        assertEquals(blocks[2], pool.allocate());
        assertEquals(blocks[0], pool.allocate());
        assertEquals(0, pool.free());
    }

    /** A cache and a model without numbers: the next token depends on all tokens before. */
    private static final class FakeModel {

        final Map<Integer, Long> cache = new HashMap<>(); // the hash of all tokens up to a slot's
        final Map<Integer, Integer> lastSampled = new HashMap<>();

        /** Computes a batch. Returns the tokens of the chunks that need logits. */
        List<Integer> compute(TokenBatch batch) {
            List<Integer> tokens = new ArrayList<>();
            for (TokenBatch.Chunk chunk : batch.chunks()) {
                long hash = chunk.start() == 0 ? 0 : cache.get(chunk.slots()[chunk.start() - 1]);
                for (int i = 0; i < chunk.tokens().length; i++) {
                    int token = chunk.tokens()[i];
                    if (token == TokenBatch.LAST_SAMPLED) {
                        token = lastSampled.get(chunk.sequence());
                    }
                    hash = next(hash, token);
                    cache.put(chunk.slots()[chunk.start() + i], hash);
                }
                if (chunk.needsLogits()) {
                    tokens.add(token(hash));
                    lastSampled.put(chunk.sequence(), token(hash));
                }
            }
            return tokens;
        }

        static long next(long hash, int token) {
            return (hash * 31 + token + 7) * 0x9E3779B97F4A7C15L;
        }

        static int token(long hash) {
            return 10 + (int) Long.remainderUnsigned(hash >>> 3, 1000);
        }

        static int[] expected(int[] prompt, int count) {
            long hash = 0;
            for (int token : prompt) {
                hash = next(hash, token);
            }
            int[] tokens = new int[count];
            for (int i = 0; i < count; i++) {
                tokens[i] = token(hash);
                hash = next(hash, tokens[i]);
            }
            return tokens;
        }
    }

    /** Random requests, cancels, and a cache that is too small for those that run. */
    @ParameterizedTest
    @CsvSource({"false, false", "false, true", "true, false", "true, true"})
    void tokensDependOnNothingElseAndNoBlockIsLost(boolean prefixCaching, boolean async) {
        Random random = new Random(7);
        Scheduler scheduler = scheduler(6, 1000, 12, 48, prefixCaching);
        FakeModel model = new FakeModel();
        Map<Sequence, int[]> expected = new LinkedHashMap<>();
        Set<Sequence> cancelled = new HashSet<>();
        List<Sequence> open = new ArrayList<>();
        List<Sequence> inFlight = new ArrayList<>();
        List<Integer> inFlightTokens = List.of();
        int steps = 0;
        while (expected.size() < 400 || !open.isEmpty() || !inFlight.isEmpty()) {
            assertTrue(++steps < 100_000, "requests do not end");
            if (expected.size() < 400 && random.nextInt(3) == 0) {
                int[] prompt = new int[1 + random.nextInt(100)];
                int kind = random.nextInt(4);
                Arrays.setAll(prompt, i -> i < 20 * kind ? i : random.nextInt(50));
                int count = 1 + random.nextInt(90);
                GenerationRequest request =
                        GenerationRequest.builder()
                                .setPromptTokens(prompt)
                                .optMaxTokens(count)
                                .build();
                PieceQueue queue = new PieceQueue(prompt.length, () -> {});
                Sequence sequence = new Sequence(request, prompt, null, Set.of(STOP), 0, queue);
                expected.put(sequence, FakeModel.expected(prompt, count));
                open.add(sequence);
                scheduler.addAll(List.of(sequence));
            }
            if (!open.isEmpty() && random.nextInt(40) == 0) {
                Sequence sequence = open.get(random.nextInt(open.size()));
                if (sequence.queue.finishReason().isEmpty()) {
                    sequence.queue.cancel();
                    cancelled.add(sequence);
                }
            }
            scheduler.removeEnded();
            boolean works = scheduler.admit();
            assertTrue(works || scheduler.all().isEmpty());
            List<Sequence> all = scheduler.all();
            List<Sequence> inOrder = expected.keySet().stream().filter(all::contains).toList();
            assertEquals(inOrder, all); // In arrival order.
            List<Sequence> next = new ArrayList<>();
            List<Integer> nextTokens = List.of();
            if (async && !inFlight.isEmpty()) {
                nextTokens = model.compute(scheduler.schedule(next));
            }
            List<Sequence> got = new ArrayList<>();
            for (int i = 0; i < inFlight.size(); i++) {
                if (!inFlight.get(i).isEnded()) {
                    inFlight.get(i).append(token(inFlightTokens.get(i)));
                    got.add(inFlight.get(i));
                    got.get(got.size() - 1)
                            .publish(new Sampler.SampledToken(inFlightTokens.get(i), 0));
                }
            }
            if (nextTokens.isEmpty()) {
                next.clear();
                nextTokens = model.compute(scheduler.schedule(next));
            }
            inFlight = next;
            inFlightTokens = nextTokens;
            open.removeIf(Sequence::isEnded);
        }
        scheduler.removeEnded();
        expected.forEach(
                (sequence, tokens) -> {
                    int[] actual =
                            Stream.generate(() -> sequence.queue.poll().orElse(null))
                                    .takeWhile(Objects::nonNull)
                                    .mapToInt(GeneratedPiece::token)
                                    .toArray();
                    int count = cancelled.contains(sequence) ? actual.length : tokens.length;
                    assertArrayEquals(Arrays.copyOf(tokens, count), actual);
                });
        GeneratorStatistics statistics = statistics(scheduler);
        assertEquals(0, statistics.cacheBlocksInUse());
        assertEquals(0, statistics.running() + statistics.queued());
        assertTrue(statistics.preemptions() > 20, statistics.toString());
        assertEquals(prefixCaching, statistics.prefixCacheHits() > 0);
        assertTrue(cancelled.size() > 20);
        assertEquals(cancelled.size(), statistics.cancelled());
        assertEquals(400 - cancelled.size(), statistics.finished());
    }

    /** Requests that can run at once do not count as waiting, even before the next step. */
    @Test
    void takesAsManySequencesAsRunAndWait() {
        Scheduler scheduler = scheduler(4, 2, 100);
        for (int i = 0; i < 6; i++) {
            scheduler.addAll(List.of(sequence(1, 1)));
        }
        RejectedExecutionException e =
                assertThrows(
                        RejectedExecutionException.class,
                        () -> scheduler.addAll(List.of(sequence(1, 1))));
        assertTrue(e.getMessage().contains("2 of at most 2 requests"), e.getMessage());
        assertEquals(6, scheduler.all().size());
    }

    @Test
    void requestsThatComeTogetherWaitTogetherOrNotAtAll() {
        Scheduler scheduler = scheduler(1, 3, 4);
        scheduler.addAll(List.of(sequence(1, 1), sequence(1, 1), sequence(1, 1)));
        scheduler.admit();
        List<Sequence> two = List.of(sequence(1, 1), sequence(1, 1));
        assertThrows(RejectedExecutionException.class, () -> scheduler.addAll(two));
        assertEquals(3, scheduler.all().size());
        scheduler.addAll(List.of(two.get(0)));
    }

    @Test
    void cancelledRequestsLeaveRoomForOthersThatWait() {
        Scheduler scheduler = scheduler(1, 1, 4);
        Sequence cancelled = sequence(1, 1);
        scheduler.addAll(List.of(cancelled));
        cancelled.queue.cancel();
        Sequence next = sequence(1, 1);
        scheduler.addAll(List.of(next));
        assertEquals(List.of(next), scheduler.all());
    }

    @Test
    void promptsAreReadInPartsBesideTokensOfOthers() {
        Scheduler scheduler = scheduler(8, 8, 100);
        Sequence generating = sequence(1, 5);
        Sequence first = sequence(150, 5);
        Sequence second = sequence(60, 5);
        scheduler.addAll(List.of(generating, first, second));
        scheduler.admit();
        List<Sequence> sampled = new ArrayList<>();
        // A chunk of 100 leaves no budget for the second prompt, which is shorter and not cut.
        assertEquals(List.of("101@0x1", "101@0x100"), next(scheduler, sampled));
        assertEquals(List.of(generating), sampled);
        generating.append(token(5));
        assertTrue(scheduler.hasStarted());
        assertEquals(List.of("5@1x1", "201@100x50"), next(scheduler, sampled));
        assertEquals(List.of(generating, first), sampled);
        generating.append(token(6));
        first.append(token(7));
        assertEquals(List.of("6@2x1", "7@150x1", "101@0x60"), next(scheduler, sampled));
        assertEquals(List.of(generating, first, second), sampled);
    }

    @Test
    void tokensThatAreStillComputedAreRead() {
        Scheduler scheduler = scheduler(8, 8, 100);
        Sequence longer = sequence(3, 4);
        Sequence shorter = sequence(2, 2);
        scheduler.addAll(List.of(longer, shorter));
        scheduler.admit();
        List<Sequence> sampled = new ArrayList<>();
        assertEquals(List.of("101@0x3", "101@0x2"), next(scheduler, sampled));
        assertFalse(scheduler.hasPrefill());
        int last = TokenBatch.LAST_SAMPLED;
        assertEquals(List.of(last + "@3x1", last + "@2x1"), next(scheduler, sampled));
        assertEquals(List.of(longer, shorter), sampled);
        longer.append(token(5));
        shorter.append(token(6));
        // The other sequence waits for its last token. A new one joins.
        Sequence late = sequence(4, 1);
        scheduler.addAll(List.of(late));
        scheduler.admit();
        assertEquals(List.of(last + "@4x1", "101@0x4"), next(scheduler, sampled));
        assertEquals(List.of(longer, late), sampled);
        longer.append(token(7));
        shorter.append(token(8));
        assertTrue(shorter.isComplete());
        assertEquals(List.of(last + "@5x1"), next(scheduler, sampled));
        longer.append(token(STOP)); // Its next token is computed, and dropped.
        late.append(token(5));
        assertTrue(late.isComplete());
        assertEquals(List.of(), next(scheduler, sampled));
    }

    @Test
    void promptsThatAreNotDecodedAreFoundFirst() {
        Scheduler scheduler = scheduler(8, 8, 100);
        scheduler.addAll(List.of(sequence(TokenBatch.MAX_DECODE_TOKENS, 4)));
        scheduler.admit();
        assertFalse(scheduler.hasPrefill());
        scheduler.addAll(List.of(sequence(TokenBatch.MAX_DECODE_TOKENS + 1, 4)));
        assertFalse(scheduler.hasPrefill()); // It waits.
        scheduler.admit();
        assertTrue(scheduler.hasPrefill());
    }

    @Test
    void shortPromptsTogetherAreAPrefill() {
        Scheduler scheduler = scheduler(8, 8, 100);
        scheduler.addAll(List.of(sequence(33, 4), sequence(31, 4), sequence(1, 4)));
        scheduler.admit();
        assertFalse(scheduler.hasPrefill());
        scheduler.addAll(List.of(sequence(2, 4)));
        scheduler.admit();
        assertTrue(scheduler.hasPrefill());
        scheduler.schedule(new ArrayList<>());
        assertFalse(scheduler.hasPrefill());
    }

    @ParameterizedTest
    @CsvSource({"100, true", "64, false"}) // each prompt alone; no more than the budget
    void shortPromptsAreRowsOfTheStep(int prefillTokens, boolean batchInvariant) {
        Scheduler scheduler = scheduler(8, 8, 100, prefillTokens, true, batchInvariant);
        scheduler.addAll(List.of(sequence(40, 4), sequence(40, 4)));
        scheduler.admit();
        assertFalse(scheduler.hasPrefill());
    }

    /** Prompts delay the tokens of running sequences by the prefill budget of a step at most. */
    @Test
    void runningSequencesGetATokenInEachStepWhilePromptsCome() {
        Scheduler scheduler = scheduler(64, 64, 1000, 512, false);
        Sequence running = sequence(128, 200);
        prefill(scheduler, 5, running);
        List<Sequence> open = new ArrayList<>();
        List<Sequence> sampled = new ArrayList<>();
        int started = 0;
        for (int step = 0; step < 20; step++) {
            for (int i = 0; i < 6; i++) { // more than a step has room for
                if (open.size() < 60) {
                    open.add(sequence(128, 1));
                    scheduler.addAll(open.subList(open.size() - 1, open.size()));
                }
            }
            scheduler.admit();
            sampled.clear();
            List<TokenBatch.Chunk> chunks = scheduler.schedule(sampled).chunks();
            assertEquals(running, sampled.get(0));
            assertEquals(1, chunks.get(0).tokens().length);
            int prompts = chunks.stream().mapToInt(chunk -> chunk.tokens().length).sum() - 1;
            assertEquals(512, prompts);
            assertEquals(open.subList(0, 4), sampled.subList(1, 5)); // in their order
            for (Sequence sequence : sampled) {
                sequence.append(token(5));
                if (sequence != running) {
                    sequence.queue.end(FinishReason.LENGTH, null);
                    started++;
                }
            }
            open.removeIf(Sequence::isEnded);
            scheduler.removeEnded();
        }
        assertEquals(80, started);
    }

    /** Random numbers are used in the order of the tokens. */
    @Test
    void ranksDrawWithTheRandomNumbersOfTheSequence() {
        GenerationRequest.Builder builder =
                GenerationRequest.builder().optTemperature(0.5).optTopK(3).optTopP(0.9).optSeed(4);
        Scheduler scheduler = scheduler(8, 8, 100);
        Sequence sequence = sequence(2, 4, builder);
        scheduler.addAll(List.of(sequence));
        scheduler.admit();
        List<SamplingParameters> parameters = new ArrayList<>();
        parameters.add(nextParameters(scheduler));
        parameters.add(nextParameters(scheduler));
        sequence.append(token(1));
        sequence.append(token(2));
        parameters.add(nextParameters(scheduler));
        Sampler sampler = sequence(2, 4, builder).sampler;
        for (SamplingParameters each : parameters) {
            assertEquals(sampler.next(), each);
            assertEquals(new SamplingParameters(0.5, 3, 0.9, 0, each.random(), -1, 0, null), each);
        }
        Scheduler ofLong = scheduler(1, 1, 100);
        ofLong.addAll(List.of(sequence(150, 4, builder)));
        ofLong.admit();
        assertEquals(
                SamplingParameters.GREEDY,
                nextParameters(ofLong)); // The first 100 tokens need no sampling.
        assertEquals(parameters.get(0), nextParameters(ofLong));
    }

    private static SamplingParameters nextParameters(Scheduler scheduler) {
        return scheduler.schedule(new ArrayList<>()).chunks().get(0).sampling();
    }
}
