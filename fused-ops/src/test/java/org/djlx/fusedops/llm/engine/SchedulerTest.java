// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.engine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.RejectedExecutionException;
import java.util.stream.IntStream;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.GeneratorStatistics;
import org.djlx.fusedops.llm.model.KvCache;
import org.djlx.fusedops.llm.model.LlamaConfig;
import org.djlx.fusedops.llm.model.LlamaFiles;
import org.djlx.fusedops.llm.model.TokenBatch;
import org.djlx.fusedops.llm.sampling.Sampler;
import org.djlx.fusedops.llm.sampling.SamplingParameters;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;

/** Scheduling without a model. The test appends the tokens. */
class SchedulerTest {

    private static final int BLOCK = KvCache.BLOCK_TOKENS;
    private static final int STOP = 9;

    private static Scheduler scheduler(int maxRunning, int maxQueued, int blocks) {
        return new Scheduler(
                new GeneratorSettings(
                        null,
                        List.of(),
                        1,
                        512,
                        maxRunning,
                        maxQueued,
                        blocks,
                        100,
                        Duration.ofSeconds(1),
                        null));
    }

    private static Sequence sequence(int prompt, int maxNewTokens) {
        return sequence(prompt, maxNewTokens, GenerationRequest.builder());
    }

    private static Sequence sequence(
            int prompt, int maxNewTokens, GenerationRequest.Builder builder) {
        int[] tokens = IntStream.rangeClosed(1, prompt).map(i -> 100 + i).toArray();
        GenerationRequest request =
                builder.setPromptTokens(tokens).optMaxNewTokens(maxNewTokens).build();
        PieceQueue queue = new PieceQueue(prompt, () -> {});
        return new Sequence(request, tokens, null, Set.of(STOP), queue);
    }

    /** Describes a chunk: its first token, its start, and its number of tokens. */
    private static String text(TokenBatch.Chunk chunk) {
        return chunk.tokens()[0] + "@" + chunk.start() + "x" + chunk.tokens().length;
    }

    private static List<String> next(Scheduler scheduler, List<Sequence> sampled) {
        sampled.clear();
        return scheduler.schedule(sampled, true).chunks().stream()
                .map(SchedulerTest::text)
                .toList();
    }

    @Test
    void requestsRunInTheirOrderWhenTheCacheHasRoom() {
        Scheduler scheduler = scheduler(2, 3, 4);
        assertFalse(scheduler.admit());
        Sequence large = sequence(2 * BLOCK, BLOCK);
        Sequence other = sequence(BLOCK, BLOCK);
        Sequence small = sequence(1, 1);
        scheduler.addAll(List.of(large, other, small));
        assertTrue(scheduler.admit());
        assertEquals(3 * BLOCK, large.slots().length);
        // The last one would fit, but the one before it does not.
        assertEquals(Arrays.asList(large, other, small), scheduler.all());
        assertEquals(null, other.slots());
        assertEquals(null, small.slots());
        large.queue.cancel();
        scheduler.removeEnded();
        assertTrue(scheduler.admit());
        assertEquals(2 * BLOCK, other.slots().length);
        assertEquals(BLOCK, small.slots().length);
        LlamaConfig config = LlamaFiles.decodable(ScalarType.BFLOAT16, true, 32);
        GeneratorStatistics statistics = scheduler.statistics(config, 0);
        assertEquals(1, statistics.cancelled());
        assertEquals(3, statistics.cacheBlocksInUse());
    }

    /** Requests that can run at once do not count as waiting, even before the next step. */
    @Test
    void asManyAreTakenAsRunAndWait() {
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
        generating.append(5);
        assertTrue(scheduler.hasStarted());
        assertEquals(List.of("5@1x1", "201@100x50"), next(scheduler, sampled));
        assertEquals(List.of(generating, first), sampled);
        generating.append(6);
        first.append(7);
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
        assertFalse(scheduler.hasLongPrefill());
        int last = TokenBatch.LAST_SAMPLED;
        assertEquals(List.of(last + "@3x1", last + "@2x1"), next(scheduler, sampled));
        assertEquals(List.of(longer, shorter), sampled);
        longer.append(5);
        shorter.append(6);
        // The other sequence waits for its last token. A new one joins.
        Sequence late = sequence(4, 1);
        scheduler.addAll(List.of(late));
        scheduler.admit();
        assertEquals(List.of(last + "@4x1", "101@0x4"), next(scheduler, sampled));
        assertEquals(List.of(longer, late), sampled);
        longer.append(7);
        shorter.append(8);
        assertTrue(shorter.isComplete());
        assertEquals(List.of(last + "@5x1"), next(scheduler, sampled));
        longer.append(STOP); // Its next token is computed, and dropped.
        late.append(5);
        assertTrue(late.isComplete());
        assertEquals(List.of(), next(scheduler, sampled));
    }

    @Test
    void promptsThatAreNotDecodedAreFoundFirst() {
        Scheduler scheduler = scheduler(8, 8, 100);
        scheduler.addAll(List.of(sequence(TokenBatch.MAX_DECODE_TOKENS, 4)));
        scheduler.admit();
        assertFalse(scheduler.hasLongPrefill());
        scheduler.addAll(List.of(sequence(TokenBatch.MAX_DECODE_TOKENS + 1, 4)));
        assertFalse(scheduler.hasLongPrefill()); // It waits.
        scheduler.admit();
        assertTrue(scheduler.hasLongPrefill());
    }

    /** Random numbers are used in the order of the tokens, on the device or the host. */
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
        sequence.append(1);
        sequence.append(2);
        parameters.add(nextParameters(scheduler));
        Sampler sampler = sequence(2, 4, builder).sampler;
        for (SamplingParameters each : parameters) {
            assertEquals(sampler.deviceParameters(), each);
            assertEquals(new SamplingParameters(0.5, 3, 0.9, each.random()), each);
        }
        Scheduler ofLong = scheduler(1, 1, 100);
        ofLong.addAll(List.of(sequence(150, 4, builder)));
        ofLong.admit();
        assertEquals(
                SamplingParameters.GREEDY,
                nextParameters(ofLong)); // The first 100 tokens need no sampling.
        assertEquals(parameters.get(0), nextParameters(ofLong));
        Sequence onCpu = sequence(1, 1, builder);
        Scheduler other = scheduler(1, 1, 4);
        other.addAll(List.of(onCpu));
        other.admit();
        assertEquals(
                SamplingParameters.GREEDY,
                other.schedule(new ArrayList<>(), false).chunks().get(0).sampling());
    }

    private static SamplingParameters nextParameters(Scheduler scheduler) {
        return scheduler.schedule(new ArrayList<>(), true).chunks().get(0).sampling();
    }
}
