// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm;

import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * A request to generate text: prompt, sampling parameters and stop conditions. The parameters apply
 * to the logits in this order, as in Hugging Face's transformers: repetition penalty, temperature,
 * top-k, top-p. Immutable.
 */
public final class GenerationRequest {

    private final String prompt; // null if promptTokens is set
    private final int[] promptTokens; // null if prompt is set
    private final int maxNewTokens;
    private final double temperature;
    private final int topK;
    private final double topP;
    private final double repetitionPenalty;
    private final Long seed;
    private final int[] stopTokens;
    private final List<String> stopStrings;
    private final boolean ignoreEndOfText;

    private GenerationRequest(Builder builder) {
        prompt = builder.prompt;
        promptTokens = builder.promptTokens;
        maxNewTokens = builder.maxNewTokens;
        temperature = builder.temperature;
        topK = builder.topK;
        topP = builder.topP;
        repetitionPenalty = builder.repetitionPenalty;
        seed = builder.seed;
        stopTokens = builder.stopTokens;
        stopStrings = builder.stopStrings;
        ignoreEndOfText = builder.ignoreEndOfText;
    }

    /** {@return a new builder} */
    public static Builder builder() {
        return new Builder();
    }

    /** {@return the prompt's text; empty if the prompt was set by its tokens} */
    public Optional<String> prompt() {
        return Optional.ofNullable(prompt);
    }

    /** {@return a copy of the prompt's tokens; empty if the prompt was set as text} */
    public Optional<int[]> promptTokens() {
        return Optional.ofNullable(promptTokens).map(int[]::clone);
    }

    /** {@return the maximum number of tokens to generate} */
    public int maxNewTokens() {
        return maxNewTokens;
    }

    /** {@return the temperature; 0 for greedy sampling} */
    public double temperature() {
        return temperature;
    }

    /** {@return top-k: the number of most probable tokens to sample from; 0 for all} */
    public int topK() {
        return topK;
    }

    /**
     * {@return top-p: the cumulative probability of the tokens to sample from; 1 for all tokens}
     */
    public double topP() {
        return topP;
    }

    /** {@return the repetition penalty; 1 for none} */
    public double repetitionPenalty() {
        return repetitionPenalty;
    }

    /** {@return the seed, if one was set} */
    public OptionalLong seed() {
        return seed == null ? OptionalLong.empty() : OptionalLong.of(seed);
    }

    /**
     * {@return a copy of the stop tokens, which end generation in addition to the model's
     * end-of-text tokens}
     */
    public int[] stopTokens() {
        return stopTokens.clone();
    }

    /** {@return the stop strings} */
    public List<String> stopStrings() {
        return stopStrings;
    }

    /** {@return whether generation continues after the model's end-of-text tokens} */
    public boolean ignoresEndOfText() {
        return ignoreEndOfText;
    }

    /** Builds a {@link GenerationRequest}. */
    public static final class Builder {

        private String prompt;
        private int[] promptTokens;
        private int maxNewTokens = 128;
        private double temperature;
        private int topK;
        private double topP = 1;
        private double repetitionPenalty = 1;
        private Long seed;
        private int[] stopTokens = {};
        private List<String> stopStrings = List.of();
        private boolean ignoreEndOfText;

        private Builder() {}

        /**
         * Sets the prompt as text. Either this or {@link #setPromptTokens} is required.
         *
         * @param prompt the text; the tokenizer adds its special tokens
         * @return this builder
         */
        public Builder setPrompt(String prompt) {
            this.prompt = prompt;
            return this;
        }

        /**
         * Sets the prompt by its tokens. Either this or {@link #setPrompt} is required.
         *
         * @param tokens the tokens; no special tokens are added
         * @return this builder
         */
        public Builder setPromptTokens(int... tokens) {
            promptTokens = tokens == null ? null : tokens.clone();
            return this;
        }

        /**
         * Sets the maximum number of tokens to generate.
         *
         * @param maxNewTokens the number, 1 or more; default 128
         * @return this builder
         */
        public Builder optMaxNewTokens(int maxNewTokens) {
            this.maxNewTokens = maxNewTokens;
            return this;
        }

        /**
         * Sets the temperature, by which the logits are divided.
         *
         * @param temperature the temperature, 0 or more; default 0, greedy sampling
         * @return this builder
         */
        public Builder optTemperature(double temperature) {
            this.temperature = temperature;
            return this;
        }

        /**
         * Samples only from the most probable tokens.
         *
         * @param topK the number of tokens, 0 or more; default 0, all tokens
         * @return this builder
         */
        public Builder optTopK(int topK) {
            this.topK = topK;
            return this;
        }

        /**
         * Samples only from the smallest set of most probable tokens that together have the
         * probability {@code topP} (nucleus sampling: Holtzman et al., 2019, <a
         * href="https://arxiv.org/abs/1904.09751">arXiv:1904.09751</a>).
         *
         * @param topP the probability, above 0 and at most 1; default 1, all tokens
         * @return this builder
         */
        public Builder optTopP(double topP) {
            this.topP = topP;
            return this;
        }

        /**
         * Lowers the logits of tokens that occur in the prompt or in the generated text: positive
         * logits are divided by the penalty, negative logits multiplied (Keskar et al., 2019, <a
         * href="https://arxiv.org/abs/1909.05858">arXiv:1909.05858</a>).
         *
         * @param repetitionPenalty the penalty, above 0; default 1, no change
         * @return this builder
         */
        public Builder optRepetitionPenalty(double repetitionPenalty) {
            this.repetitionPenalty = repetitionPenalty;
            return this;
        }

        /**
         * Sets the seed of the random numbers.
         *
         * <ul>
         *   <li>float16 and bfloat16: on the same ranks, the same request with the same seed gives
         *       the same tokens, whatever other requests run, if prefix caching is off. With prefix
         *       caching, keys and values of a shared beginning may differ in their last bit.
         *   <li>float32: one matmul computes the tokens of several requests, and the batch size may
         *       change the last bits of the logits. If two tokens are nearly equally probable,
         *       these bits can change the choice, and then all tokens after it.
         * </ul>
         *
         * @param seed the seed; default random
         * @return this builder
         */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        /**
         * Sets stop tokens, in addition to the model's end-of-text tokens.
         *
         * @param tokens the tokens; default none
         * @return this builder
         */
        public Builder optStopTokens(int... tokens) {
            stopTokens = tokens == null ? null : tokens.clone();
            return this;
        }

        /**
         * Sets stop strings. The model must have a tokenizer.
         *
         * @param strings the strings, none of them empty; default none
         * @return this builder
         */
        public Builder optStopStrings(List<String> strings) {
            stopStrings = strings;
            return this;
        }

        /**
         * Sets whether generation continues after the model's end-of-text tokens.
         *
         * @param ignoreEndOfText whether to continue; default false
         * @return this builder
         */
        public Builder optIgnoreEndOfText(boolean ignoreEndOfText) {
            this.ignoreEndOfText = ignoreEndOfText;
            return this;
        }

        /**
         * {@return the request}
         *
         * @throws IllegalArgumentException if a value is out of range; the message names the value
         */
        public GenerationRequest build() {
            check((prompt == null) != (promptTokens == null), "set either prompt or promptTokens");
            check(prompt == null || !prompt.isEmpty(), "the prompt is empty");
            check(promptTokens == null || promptTokens.length > 0, "the prompt has no tokens");
            check(maxNewTokens >= 1, "maxNewTokens must be 1 or more, not " + maxNewTokens);
            check(
                    temperature >= 0 && Double.isFinite(temperature),
                    "temperature must be a finite number, 0 or more, not " + temperature);
            check(topK >= 0, "topK must be 0 or more, not " + topK);
            check(topP > 0 && topP <= 1, "topP must be above 0 and at most 1, not " + topP);
            check(
                    repetitionPenalty > 0 && Double.isFinite(repetitionPenalty),
                    "repetitionPenalty must be a finite number above 0, not " + repetitionPenalty);
            check(stopTokens != null, "stopTokens is null");
            check(stopStrings != null, "stopStrings is null");
            check(
                    stopStrings.stream().noneMatch(stop -> stop == null || stop.isEmpty()),
                    "stopStrings must not contain an empty string: " + stopStrings);
            stopStrings = List.copyOf(stopStrings);
            return new GenerationRequest(this);
        }

        private static void check(boolean condition, String problem) {
            if (!condition) {
                throw new IllegalArgumentException("generation request: " + problem);
            }
        }
    }

    @Override
    public String toString() {
        String of =
                prompt != null ? prompt.length() + " characters" : promptTokens.length + " tokens";
        return "request(prompt of " + of + ", at most " + maxNewTokens + " new tokens)";
    }
}
