// SPDX-License-Identifier: Apache-2.0
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

/** A request being served: its tokens, how many of them are computed, and its cache slots. */
final class Sequence {

    final PieceQueue queue;
    final Sampler sampler;
    private final TextStream text;
    private final Set<Integer> stopTokens;
    private final int promptTokens;
    private final int[] tokens; // prompt and generated tokens, with room for all new tokens
    private int count; // tokens known to the host
    private int computed; // tokens scheduled so far; up to count + 1 with async scheduling
    private boolean pending; // the next token is being computed
    private int[] slots; // in the KV cache; null while the sequence waits

    Sequence(
            GenerationRequest request,
            int[] prompt,
            TextTokenizer tokenizer,
            Set<Integer> stopTokens,
            PieceQueue queue) {
        this.queue = queue;
        this.stopTokens = stopTokens;
        sampler = new Sampler(request, prompt);
        text = new TextStream(tokenizer, request.stopStrings(), prompt);
        promptTokens = prompt.length;
        tokens = Arrays.copyOf(prompt, prompt.length + request.maxNewTokens());
        count = prompt.length;
    }

    /** Returns the tokens of the prompt plus the maximum of new tokens. */
    int maxTokens() {
        return tokens.length;
    }

    int promptTokens() {
        return promptTokens;
    }

    boolean isEnded() {
        return queue.finishReason().isPresent();
    }

    void setSlots(int[] slots) {
        this.slots = slots;
    }

    int[] slots() {
        return slots;
    }

    /** Returns whether a token has been scheduled. */
    boolean isStarted() {
        return computed > 0;
    }

    /** Returns how many tokens known to the host are not scheduled yet. */
    int uncomputedTokens() {
        return count - computed;
    }

    /** Returns whether the next token is being computed. */
    boolean isTokenPending() {
        return pending;
    }

    /** Returns whether the maximum length leaves room for a token after the pending one. */
    boolean canRunAhead() {
        return count + 1 < tokens.length;
    }

    /** Schedules the pending token, whose value only the device knows (async scheduling). */
    TokenBatch.Chunk nextPendingChunk() {
        return new TokenBatch.Chunk(
                new int[] {TokenBatch.LAST_SAMPLED},
                computed++,
                slots,
                true,
                sampler.deviceParameters());
    }

    /**
     * Schedules the next tokens.
     *
     * @param maxTokens the most tokens to schedule
     * @param onDevice whether the device samples the token after the last one
     */
    TokenBatch.Chunk nextChunk(int maxTokens, boolean onDevice) {
        int start = computed;
        computed = Math.min(count, start + maxTokens);
        pending = computed == count;
        return new TokenBatch.Chunk(
                Arrays.copyOfRange(tokens, start, computed),
                start,
                slots,
                pending,
                onDevice && pending ? sampler.deviceParameters() : SamplingParameters.GREEDY);
    }

    /** Appends the sampled token. */
    void append(int token) {
        tokens[count++] = token;
        pending = computed == count; // With async scheduling the token is scheduled already.
    }

    /** Returns whether generation ends here: the maximum length or a stop token is reached. */
    boolean isComplete() {
        return count > promptTokens
                && (count == tokens.length || stopTokens.contains(tokens[count - 1]));
    }

    /** Publishes the token that was {@linkplain #append appended} last. May end the generation. */
    void publish(Sampler.SampledToken sampled) {
        int token = sampled.token();
        if (stopTokens.contains(token)) {
            publish(sampled, text.end(), FinishReason.STOP);
            return;
        }
        String certain = text.add(token);
        if (!text.isStopped() && count == tokens.length) {
            certain += text.end();
            FinishReason reason = text.isStopped() ? FinishReason.STOP_STRING : FinishReason.LENGTH;
            publish(sampled, certain, reason);
            return;
        }
        publish(sampled, certain, text.isStopped() ? FinishReason.STOP_STRING : null);
    }

    private void publish(Sampler.SampledToken sampled, String certain, FinishReason reason) {
        queue.add(new GeneratedPiece(sampled.token(), certain, sampled.logProbability()), reason);
    }
}
