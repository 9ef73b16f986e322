/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import java.util.Arrays;
import java.util.Set;
import org.djlx.fusedops.llm.FinishReason;
import org.djlx.fusedops.llm.GeneratedPiece;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.model.TokenBatch;
import org.djlx.fusedops.llm.sampling.Sampler;
import org.djlx.fusedops.llm.sampling.SamplingParameters;
import org.djlx.fusedops.llm.text.TextStream;
import org.djlx.fusedops.llm.text.TextTokenizer;

/**
 * A request that is being served: its tokens, what of them is in the cache, and what comes next.
 */
public final class Sequence {

    final PieceQueue queue;
    final Sampler chooser;
    private final TextStream text;
    private final Set<Integer> stopTokens;
    private final int promptTokens;
    private final int[] tokens; // the prompt's and those generated, with room for the rest
    private int count;
    private int cached; // what the model has read, or is reading: up to one more than there are
    private boolean awaiting; // the next token, which the model computes
    private int[] rows; // of the cache; null before it has some

    Sequence(
            GenerationRequest request,
            int[] prompt,
            TextTokenizer tokenizer,
            Set<Integer> stopTokens,
            PieceQueue queue) {
        this.queue = queue;
        this.stopTokens = stopTokens;
        chooser = new Sampler(request, prompt);
        text = new TextStream(tokenizer, request.stopStrings(), prompt);
        promptTokens = prompt.length;
        tokens = Arrays.copyOf(prompt, prompt.length + request.maxNewTokens());
        count = prompt.length;
    }

    /** Returns how many tokens the sequence may get. */
    int capacity() {
        return tokens.length;
    }

    boolean isEnded() {
        return queue.finishReason().isPresent();
    }

    void setRows(int[] rows) {
        this.rows = rows;
    }

    int[] rows() {
        return rows;
    }

    /** Tells whether the model has read some of it. */
    boolean isBegun() {
        return cached > 0;
    }

    /** Returns how many tokens that are known here the model has not read. */
    int unread() {
        return count - cached;
    }

    /** Tells whether the model computes a token of it. */
    boolean isAwaiting() {
        return awaiting;
    }

    /** Tells whether another token follows the awaited one, as far as its value does not matter. */
    boolean canReadAhead() {
        return count + 1 < tokens.length;
    }

    /** Returns the awaited token for the model, which knows it first, and takes it for read. */
    TokenBatch.Chunk readAhead() {
        return new TokenBatch.Chunk(
                new int[] {TokenBatch.CHOSEN}, cached++, rows, true, chooser.draw());
    }

    /**
     * Returns the next tokens for the model, and takes them for read.
     *
     * @param most how many, at most
     * @param draws whether the ranks draw what follows
     */
    TokenBatch.Chunk read(int most, boolean draws) {
        int start = cached;
        cached = Math.min(count, start + most);
        awaiting = cached == count;
        return new TokenBatch.Chunk(
                Arrays.copyOfRange(tokens, start, cached),
                start,
                rows,
                awaiting,
                draws && awaiting ? chooser.draw() : SamplingParameters.BEST);
    }

    /** Takes the token that follows. */
    void take(int token) {
        tokens[count++] = token;
        awaiting = cached == count; // The model reads it already.
    }

    /** Tells whether no token follows, whatever the text is. */
    boolean isComplete() {
        return count > promptTokens
                && (count == tokens.length || stopTokens.contains(tokens[count - 1]));
    }

    /** Tells the caller of the token that was {@linkplain #take taken} last; it may end with it. */
    void tell(Sampler.Choice choice) {
        int token = choice.token();
        if (stopTokens.contains(token)) {
            add(choice, text.end(), FinishReason.STOP);
            return;
        }
        String certain = text.add(token);
        if (!text.isStopped() && count == tokens.length) {
            certain += text.end();
            add(choice, certain, text.isStopped() ? FinishReason.STOP_STRING : FinishReason.LENGTH);
            return;
        }
        add(choice, certain, text.isStopped() ? FinishReason.STOP_STRING : null);
    }

    private void add(Sampler.Choice choice, String certain, FinishReason end) {
        queue.add(new GeneratedPiece(choice.token(), certain, choice.logProbability()), end);
    }

    int promptTokens() {
        return promptTokens;
    }
}
