// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.sampling;

/**
 * The sampling parameters of one token, for sampling on the device. All ranks sample the same
 * token.
 *
 * @param temperature the divisor of the logits; 0 for greedy sampling
 * @param topK the number of tokens with the highest logits to sample from; 0 for all
 * @param topP the cumulative probability of the tokens to sample from; 1 for all
 * @param random the random bits that select the token
 */
public record SamplingParameters(double temperature, int topK, double topP, long random) {

    /** Takes the token with the highest logit. */
    public static final SamplingParameters GREEDY = new SamplingParameters(0, 0, 1, 0);

    /** {@return whether the token with the highest logit is taken} */
    public boolean isGreedy() {
        return temperature == 0;
    }
}
