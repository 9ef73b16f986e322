// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.model.TokenBatch;
import org.djlx.fusedops.llm.sampling.Sampler;
import org.djlx.fusedops.llm.sampling.SamplingParameters;
import org.junit.jupiter.api.Test;

/** Encoding of steps, and when they need full logits. */
class StepRequestTest {

    private static final int[] PROMPT = {1, 2};
    private static final SamplingParameters SAMPLING = new SamplingParameters(0.7, 40, 0.95, -3);

    private static Sampler sampler(UnaryOperator<GenerationRequest.Builder> change) {
        GenerationRequest.Builder builder = GenerationRequest.builder().setPromptTokens(PROMPT);
        return new Sampler(change.apply(builder).build(), PROMPT);
    }

    private static TokenBatch.Chunk chunk(boolean needsLogits, SamplingParameters sampling) {
        return new TokenBatch.Chunk(0, new int[] {5}, 7, new int[16], needsLogits, sampling);
    }

    /** Other processes get everything except the samplers, which only rank 0 uses. */
    @Test
    void whatIsSentArrives() {
        int[] ahead = {TokenBatch.LAST_SAMPLED};
        int[] apart = {48, 49, 50, 16, 17, 0, 96};
        int[] many = IntStream.range(0, 4096).toArray();
        List<TokenBatch.Chunk> chunks =
                List.of(
                        new TokenBatch.Chunk(4, ahead, 6, apart, true, SAMPLING),
                        new TokenBatch.Chunk(0, many, 0, many, false, SamplingParameters.GREEDY),
                        new TokenBatch.Chunk(
                                5, new int[] {3, 4}, 9, many, true, SamplingParameters.GREEDY));
        Sampler penalized = sampler(builder -> builder.optRepetitionPenalty(2));
        StepRequest sent = new StepRequest(new TokenBatch(chunks), List.of(penalized, penalized));
        StepRequest step = StepRequest.CODEC.decode(StepRequest.CODEC.encode(sent));
        assertTrue(step.needsFullLogits());
        assertTrue(step.samplers().isEmpty());
        assertEquals(chunks.size(), step.batch().chunks().size());
        for (int i = 0; i < chunks.size(); i++) {
            TokenBatch.Chunk expected = chunks.get(i);
            TokenBatch.Chunk actual = step.batch().chunks().get(i);
            assertArrayEquals(expected.tokens(), actual.tokens());
            assertEquals(expected.start(), actual.start());
            assertEquals(expected.sequence(), actual.sequence());
            assertArrayEquals(Arrays.copyOf(expected.slots(), expected.length()), actual.slots());
            assertEquals(expected.needsLogits(), actual.needsLogits());
            assertEquals(expected.sampling(), actual.sampling());
        }
        StepRequest end = StepRequest.CODEC.decode(StepRequest.CODEC.encode(StepRequest.FLUSH));
        assertTrue(end.batch().chunks().isEmpty());
        assertFalse(end.needsFullLogits());
    }

    private static boolean needsFullLogits(Sampler sampler, TokenBatch.Chunk... chunks) {
        return new StepRequest(new TokenBatch(List.of(chunks)), List.of(sampler)).needsFullLogits();
    }

    /** Full logits are needed only if the host samples from them. */
    @Test
    void allScoresAreNeededWhereRanksDoNotChoose() {
        Sampler greedy = sampler(builder -> builder);
        Sampler random = sampler(builder -> builder.optTemperature(1));
        Sampler penalized = sampler(builder -> builder.optRepetitionPenalty(2));
        assertFalse(needsFullLogits(greedy, chunk(true, SamplingParameters.GREEDY)));
        assertFalse(needsFullLogits(random, chunk(true, SAMPLING)));
        assertTrue(needsFullLogits(random, chunk(true, SamplingParameters.GREEDY)));
        assertTrue(needsFullLogits(penalized, chunk(true, SamplingParameters.GREEDY)));
        // Only chunks that need logits have samplers.
        assertFalse(
                needsFullLogits(
                        greedy,
                        chunk(false, SamplingParameters.GREEDY),
                        chunk(true, SamplingParameters.GREEDY)));
        assertTrue(
                needsFullLogits(
                        penalized,
                        chunk(false, SamplingParameters.GREEDY),
                        chunk(true, SamplingParameters.GREEDY)));
    }
}
