// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import java.util.Map;
import java.util.OptionalLong;

/** How the tokens of a sequence are sampled. Immutable. */
public interface SamplingOptions {

    /** {@return the temperature; 0 for greedy sampling} */
    double temperature();

    /** {@return top-k: the number of most probable tokens to sample from; 0 for all} */
    int topK();

    /**
     * {@return top-p: the cumulative probability of the tokens to sample from; 1 for all tokens}
     */
    double topP();

    /**
     * {@return min-p: the least probability of the tokens to sample from, relative to the most
     * probable token; 0 for all tokens}
     */
    double minP();

    /** {@return the repetition penalty; 1 for none} */
    double repetitionPenalty();

    /** {@return what is subtracted from a logit for each time its token was generated} */
    double frequencyPenalty();

    /** {@return what is subtracted from the logits of generated tokens} */
    double presencePenalty();

    /** {@return what is added to the logits of some tokens} */
    Map<Integer, Double> logitBias();

    /** {@return the seed, if one was set} */
    OptionalLong seed();

    /** {@return the number of tokens to generate before a stop token or stop string counts} */
    int minTokens();

    /** {@return how many of the most probable tokens each piece lists} */
    int topLogProbabilities();
}
