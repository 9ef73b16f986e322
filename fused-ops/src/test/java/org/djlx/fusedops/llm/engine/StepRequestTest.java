/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.model.TokenBatch;
import org.djlx.fusedops.llm.sampling.Sampler;
import org.djlx.fusedops.llm.sampling.SamplingParameters;
import org.junit.jupiter.api.Test;

/** What ranks are told of a step. */
class StepRequestTest {

    private static final int[] PROMPT = {1, 2};
    private static final SamplingParameters DRAW = new SamplingParameters(0.7, 40, 0.95, -3);

    private static Sampler chooser(UnaryOperator<GenerationRequest.Builder> change) {
        GenerationRequest.Builder builder = GenerationRequest.builder().setPromptTokens(PROMPT);
        return new Sampler(change.apply(builder).build(), PROMPT);
    }

    private static TokenBatch.Chunk chunk(boolean wanted, SamplingParameters draw) {
        return new TokenBatch.Chunk(new int[] {5}, 7, new int[16], wanted, draw);
    }

    /** Processes get all that ranks which are threads share, but for what is rank 0's alone. */
    @Test
    void whatIsSentArrives() {
        int[] ahead = {TokenBatch.CHOSEN};
        int[] apart = {48, 49, 50, 16, 17, 0, 96};
        int[] many = IntStream.range(0, 4096).toArray();
        List<TokenBatch.Chunk> chunks =
                List.of(
                        new TokenBatch.Chunk(ahead, 6, apart, true, DRAW),
                        new TokenBatch.Chunk(many, 0, many, false, SamplingParameters.BEST),
                        new TokenBatch.Chunk(
                                new int[] {3, 4}, 9, many, true, SamplingParameters.BEST));
        Sampler penalized = chooser(builder -> builder.optRepetitionPenalty(2));
        StepRequest sent = new StepRequest(new TokenBatch(chunks), List.of(penalized, penalized));
        StepRequest step = StepRequest.CODEC.decode(StepRequest.CODEC.encode(sent));
        assertTrue(step.needsAll());
        assertTrue(step.choosers().isEmpty());
        assertEquals(chunks.size(), step.batch().chunks().size());
        for (int i = 0; i < chunks.size(); i++) {
            TokenBatch.Chunk expected = chunks.get(i);
            TokenBatch.Chunk actual = step.batch().chunks().get(i);
            assertArrayEquals(expected.tokens(), actual.tokens());
            assertEquals(expected.start(), actual.start());
            assertArrayEquals(expected.rows(), actual.rows());
            assertEquals(expected.wanted(), actual.wanted());
            assertEquals(expected.draw(), actual.draw());
        }
        StepRequest end = StepRequest.CODEC.decode(StepRequest.CODEC.encode(StepRequest.END));
        assertTrue(end.batch().chunks().isEmpty());
        assertFalse(end.needsAll());
    }

    private static boolean needsAll(Sampler chooser, TokenBatch.Chunk... chunks) {
        return new StepRequest(new TokenBatch(List.of(chunks)), List.of(chooser)).needsAll();
    }

    /** The host gets no scores that it does not choose from. */
    @Test
    void allScoresAreNeededWhereRanksDoNotChoose() {
        Sampler greedy = chooser(builder -> builder);
        Sampler drawing = chooser(builder -> builder.optTemperature(1));
        Sampler penalized = chooser(builder -> builder.optRepetitionPenalty(2));
        assertFalse(needsAll(greedy, chunk(true, SamplingParameters.BEST)));
        assertFalse(needsAll(drawing, chunk(true, DRAW)));
        assertTrue(needsAll(drawing, chunk(true, SamplingParameters.BEST)));
        assertTrue(needsAll(penalized, chunk(true, SamplingParameters.BEST)));
        // There are choosers of those that are wanted only.
        assertFalse(
                needsAll(
                        greedy,
                        chunk(false, SamplingParameters.BEST),
                        chunk(true, SamplingParameters.BEST)));
        assertTrue(
                needsAll(
                        penalized,
                        chunk(false, SamplingParameters.BEST),
                        chunk(true, SamplingParameters.BEST)));
    }
}
