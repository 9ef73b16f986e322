/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Set;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.model.TokenBatch;
import org.junit.jupiter.api.Test;

/** What of a sequence the model reads, and when. */
class SequenceTest {

    private static final int STOP = 9;

    private static Sequence sequence(int maxNewTokens) {
        int[] prompt = {1, 2, 3};
        GenerationRequest request =
                GenerationRequest.builder()
                        .setPromptTokens(prompt)
                        .optMaxNewTokens(maxNewTokens)
                        .build();
        PieceQueue queue = new PieceQueue(prompt.length, () -> {});
        return new Sequence(request, prompt, null, Set.of(STOP), queue);
    }

    private static void check(
            TokenBatch.Chunk chunk, int start, boolean wanted, int... expectedTokens) {
        assertEquals(start, chunk.start());
        assertEquals(wanted, chunk.wanted());
        assertArrayEquals(expectedTokens, chunk.tokens());
    }

    @Test
    void isReadAsItsTokensCome() {
        Sequence sequence = sequence(2);
        assertFalse(sequence.isAwaiting());
        check(sequence.read(2, false), 0, false, 1, 2);
        assertFalse(sequence.isAwaiting());
        check(sequence.read(2, false), 2, true, 3);
        assertTrue(sequence.isAwaiting());
        sequence.take(5);
        assertFalse(sequence.isAwaiting());
        assertEquals(1, sequence.unread());
        check(sequence.read(2, false), 3, true, 5);
        sequence.take(6);
        assertTrue(sequence.isComplete());
    }

    @Test
    void isReadAheadUntilItsLastToken() {
        Sequence sequence = sequence(3);
        sequence.read(3, false);
        assertTrue(sequence.canReadAhead());
        check(sequence.readAhead(), 3, true, TokenBatch.CHOSEN);
        sequence.take(5);
        assertTrue(sequence.isAwaiting());
        assertEquals(0, sequence.unread());
        assertTrue(sequence.canReadAhead());
        check(sequence.readAhead(), 4, true, TokenBatch.CHOSEN);
        sequence.take(6);
        assertTrue(sequence.isAwaiting());
        assertFalse(sequence.canReadAhead()); // What follows the last token is not wanted.
        sequence.take(7);
        assertFalse(sequence.isAwaiting());
        assertTrue(sequence.isComplete());
    }

    @Test
    void isReadAsUsualAfterItWasReadAhead() {
        Sequence sequence = sequence(5);
        sequence.read(3, false);
        sequence.readAhead();
        sequence.take(5);
        sequence.take(6);
        assertFalse(sequence.isAwaiting());
        check(sequence.read(1, false), 4, true, 6);
    }

    @Test
    void isCompleteWhenItStopsThoughItWasReadAhead() {
        Sequence sequence = sequence(5);
        sequence.read(3, false);
        sequence.readAhead();
        sequence.take(STOP);
        assertTrue(sequence.isComplete());
    }
}
