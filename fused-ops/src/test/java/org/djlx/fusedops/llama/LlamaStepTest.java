/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llama;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** What ranks are told of a step. */
class LlamaStepTest {

    private static final int[] PROMPT = {1, 2};
    private static final Draw DRAW = new Draw(0.7, 40, 0.95, -3);

    private static TokenChooser chooser(UnaryOperator<GenerationRequest.Builder> change) {
        GenerationRequest.Builder builder = GenerationRequest.builder().setPromptTokens(PROMPT);
        return new TokenChooser(change.apply(builder).build(), PROMPT);
    }

    private static LlamaBatch.Chunk chunk(boolean wanted, Draw draw) {
        return new LlamaBatch.Chunk(new int[] {5}, 7, new int[16], wanted, draw);
    }

    /** Processes get all that ranks which are threads share, but for what is rank 0's alone. */
    @Test
    void whatIsSentArrives() {
        int[] ahead = {LlamaBatch.CHOSEN};
        int[] apart = {48, 49, 50, 16, 17, 0, 96};
        int[] many = IntStream.range(0, 4096).toArray();
        List<LlamaBatch.Chunk> chunks =
                List.of(
                        new LlamaBatch.Chunk(ahead, 6, apart, true, DRAW),
                        new LlamaBatch.Chunk(many, 0, many, false, Draw.BEST),
                        new LlamaBatch.Chunk(new int[] {3, 4}, 9, many, true, Draw.BEST));
        TokenChooser penalized = chooser(builder -> builder.optRepetitionPenalty(2));
        LlamaStep sent = new LlamaStep(new LlamaBatch(chunks), List.of(penalized, penalized));
        LlamaStep step = LlamaStep.CODEC.decode(LlamaStep.CODEC.encode(sent));
        assertTrue(step.needsAll());
        assertTrue(step.choosers().isEmpty());
        assertEquals(chunks.size(), step.batch().chunks().size());
        for (int i = 0; i < chunks.size(); i++) {
            LlamaBatch.Chunk expected = chunks.get(i);
            LlamaBatch.Chunk actual = step.batch().chunks().get(i);
            assertArrayEquals(expected.tokens(), actual.tokens());
            assertEquals(expected.start(), actual.start());
            assertArrayEquals(expected.rows(), actual.rows());
            assertEquals(expected.wanted(), actual.wanted());
            assertEquals(expected.draw(), actual.draw());
        }
        LlamaStep end = LlamaStep.CODEC.decode(LlamaStep.CODEC.encode(LlamaStep.END));
        assertTrue(end.batch().chunks().isEmpty());
        assertFalse(end.needsAll());
    }

    private static boolean needsAll(TokenChooser chooser, LlamaBatch.Chunk... chunks) {
        return new LlamaStep(new LlamaBatch(List.of(chunks)), List.of(chooser)).needsAll();
    }

    /** The host gets no scores that it does not choose from. */
    @Test
    void allScoresAreNeededWhereRanksDoNotChoose() {
        TokenChooser greedy = chooser(builder -> builder);
        TokenChooser drawing = chooser(builder -> builder.optTemperature(1));
        TokenChooser penalized = chooser(builder -> builder.optRepetitionPenalty(2));
        assertFalse(needsAll(greedy, chunk(true, Draw.BEST)));
        assertFalse(needsAll(drawing, chunk(true, DRAW)));
        assertTrue(needsAll(drawing, chunk(true, Draw.BEST)));
        assertTrue(needsAll(penalized, chunk(true, Draw.BEST)));
        // There are choosers of those that are wanted only.
        assertFalse(needsAll(greedy, chunk(false, Draw.BEST), chunk(true, Draw.BEST)));
        assertTrue(needsAll(penalized, chunk(false, Draw.BEST), chunk(true, Draw.BEST)));
    }
}
