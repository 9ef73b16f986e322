// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

/**
 * How one token is sampled. All ranks sample the same token. The parameters apply in this order:
 * edits, temperature, min-p, top-k, top-p.
 *
 * @param temperature the divisor of the logits; 0 for greedy sampling
 * @param topK the number of tokens with the highest logits to sample from; 0 for all
 * @param topP the cumulative probability of the tokens to sample from; 1 for all
 * @param minP the probability of the tokens to sample from, relative to the most probable token; 0
 *     for all
 * @param random the random bits that select the token
 * @param given a token to report with its log probability instead of a sampled one, such as the
 *     next token of a prompt; -1 to sample
 * @param topLogProbabilities how many of the most probable tokens to report, before edits and
 *     temperature
 * @param edits changes to the logits; null for none
 */
public record SamplingParameters(
        double temperature,
        int topK,
        double topP,
        double minP,
        long random,
        int given,
        int topLogProbabilities,
        LogitEdits edits) {

    /** Takes the token with the highest logit. */
    public static final SamplingParameters GREEDY =
            new SamplingParameters(0, 0, 1, 0, 0, -1, 0, null);

    /** {@return the parameters that report a given token} */
    public static SamplingParameters ofGiven(int token, int topLogProbabilities) {
        return new SamplingParameters(0, 0, 1, 0, 0, token, topLogProbabilities, null);
    }

    /**
     * {@return whether the token with the highest logit is taken and nothing else is reported: the
     * logits of the other tokens are not needed}
     */
    public boolean isPlain() {
        return temperature == 0 && given < 0 && topLogProbabilities == 0 && edits == null;
    }
}
