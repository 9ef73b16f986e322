// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Set;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.sampling.Sampler;
import org.junit.jupiter.api.Test;

/** Which tokens of a sequence are scheduled, and when. */
class SequenceTest {

    private static final int STOP = 9;

    private static Sequence sequence(int maxTokens) {
        int[] prompt = {1, 2, 3};
        GenerationRequest request =
                GenerationRequest.builder().setPromptTokens(prompt).optMaxTokens(maxTokens).build();
        PieceQueue queue = new PieceQueue(prompt.length, () -> {});
        return new Sequence(request, prompt, null, Set.of(STOP), 0, queue);
    }

    private static void check(
            TokenBatch.Chunk chunk, int start, boolean needsLogits, int... expectedTokens) {
        assertEquals(start, chunk.start());
        assertEquals(needsLogits, chunk.needsLogits());
        assertArrayEquals(expectedTokens, chunk.tokens());
    }

    @Test
    void chunksFollowTheTokensThatCome() {
        Sequence sequence = sequence(2);
        assertFalse(sequence.isTokenPending());
        check(sequence.nextChunk(2), 0, false, 1, 2);
        assertFalse(sequence.isTokenPending());
        check(sequence.nextChunk(2), 2, true, 3);
        assertTrue(sequence.isTokenPending());
        sequence.append(new Sampler.SampledToken(5, 0));
        assertFalse(sequence.isTokenPending());
        assertEquals(1, sequence.uncomputedTokens());
        check(sequence.nextChunk(2), 3, true, 5);
        sequence.append(new Sampler.SampledToken(6, 0));
        assertTrue(sequence.isComplete());
    }

    @Test
    void readsAheadUntilTheLastToken() {
        Sequence sequence = sequence(3);
        sequence.nextChunk(3);
        assertTrue(sequence.canRunAhead());
        check(sequence.nextPendingChunk(), 3, true, TokenBatch.LAST_SAMPLED);
        sequence.append(new Sampler.SampledToken(5, 0));
        assertTrue(sequence.isTokenPending());
        assertEquals(0, sequence.uncomputedTokens());
        assertTrue(sequence.canRunAhead());
        check(sequence.nextPendingChunk(), 4, true, TokenBatch.LAST_SAMPLED);
        sequence.append(new Sampler.SampledToken(6, 0));
        assertTrue(sequence.isTokenPending());
        assertFalse(sequence.canRunAhead()); // The last token needs no logits.
        sequence.append(new Sampler.SampledToken(7, 0));
        assertFalse(sequence.isTokenPending());
        assertTrue(sequence.isComplete());
    }

    @Test
    void readsAsUsualAfterReadingAhead() {
        Sequence sequence = sequence(5);
        sequence.nextChunk(3);
        sequence.nextPendingChunk();
        sequence.append(new Sampler.SampledToken(5, 0));
        sequence.append(new Sampler.SampledToken(6, 0));
        assertFalse(sequence.isTokenPending());
        check(sequence.nextChunk(1), 4, true, 6);
    }

    @Test
    void isCompleteWhenItStopsAfterReadingAhead() {
        Sequence sequence = sequence(5);
        sequence.nextChunk(3);
        sequence.nextPendingChunk();
        sequence.append(new Sampler.SampledToken(STOP, 0));
        assertTrue(sequence.isComplete());
    }
}
