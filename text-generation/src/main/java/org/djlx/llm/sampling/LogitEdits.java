// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import java.util.function.Supplier;

/**
 * Changes to the logits of one token of a sequence, computed in float32 before the temperature, in
 * vLLM's order: tokens that are not allowed get no probability, biases are added, then come the
 * repetition penalty, the frequency penalty and the presence penalty. Ranks on GPUs make the same
 * changes in the kernel {@code decode_sample}. The arrays are not copied and must not change.
 *
 * @param repetitionPenalty divides positive logits and multiplies negative ones of tokens of the
 *     prompt and of generated tokens; 1 for none
 * @param frequencyPenalty subtracted for each time that a token was generated; 0 for none
 * @param presencePenalty subtracted from generated tokens; 0 for none
 * @param entries three ints for each token whose logit changes: the token; how often it was
 *     generated, plus {@link #IN_PROMPT} if the prompt has it; the bits of a float that is added,
 *     negative infinity to forbid the token
 * @param allowed a bit for each token of the vocabulary, the lowest bit of each int first: 1 if the
 *     token is allowed, 0 or missing if not; null if all are allowed. May wait until the bits are
 *     computed, and is thread-safe
 */
public record LogitEdits(
        float repetitionPenalty,
        float frequencyPenalty,
        float presencePenalty,
        int[] entries,
        Supplier<int[]> allowed) {

    /** Marks a token of the prompt in a count of {@link #entries}. */
    public static final int IN_PROMPT = 1 << 30;

    public static final int ENTRY = 3;

    void apply(float[] logits) {
        int[] bits = allowed == null ? null : allowed.get();
        for (int token = 0; bits != null && token < logits.length; token++) {
            int word = token / Integer.SIZE;
            if (word >= bits.length || (bits[word] >> token & 1) == 0) {
                logits[token] = Float.NEGATIVE_INFINITY;
            }
        }
        for (int i = 0; i < entries.length; i += ENTRY) {
            int token = entries[i];
            float biased = logits[token] + Float.intBitsToFloat(entries[i + 2]);
            logits[token] = edited(biased, entries[i + 1]);
        }
    }

    private float edited(float logit, int count) {
        if (logit == Float.NEGATIVE_INFINITY) {
            return logit;
        }
        float penalized = logit;
        if (count != 0 && repetitionPenalty != 1) {
            float lowered = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
            penalized = Math.max(-Float.MAX_VALUE, Math.min(Float.MAX_VALUE, lowered));
        }
        int generated = count & ~IN_PROMPT;
        return penalized - frequencyPenalty * generated - (generated > 0 ? presencePenalty : 0);
    }
}
