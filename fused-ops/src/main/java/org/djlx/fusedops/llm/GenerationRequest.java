/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm;

import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * What to generate, and how tokens are chosen. From the model's scores, first the repetition
 * penalty is applied, then the temperature, then the top-k, then the top-p, as Hugging Face's
 * transformers do. Immutable.
 */
public final class GenerationRequest {

    private final String prompt; // null if there are tokens
    private final int[] promptTokens; // null if there is text
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

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Returns the prompt, if it is a text.
     *
     * @return the text
     */
    public Optional<String> prompt() {
        return Optional.ofNullable(prompt);
    }

    /**
     * Returns the prompt, if it is given by tokens.
     *
     * @return a copy of the tokens
     */
    public Optional<int[]> promptTokens() {
        return Optional.ofNullable(promptTokens).map(int[]::clone);
    }

    /**
     * Returns how many tokens to generate at most.
     *
     * @return the number
     */
    public int maxNewTokens() {
        return maxNewTokens;
    }

    /**
     * Returns the temperature.
     *
     * @return the temperature; 0 if the most probable token is taken
     */
    public double temperature() {
        return temperature;
    }

    /**
     * Returns among how many tokens is drawn.
     *
     * @return the number; 0 for all
     */
    public int topK() {
        return topK;
    }

    /**
     * Returns the probability that the tokens among which is drawn have together.
     *
     * @return the probability; 1 for all tokens
     */
    public double topP() {
        return topP;
    }

    /**
     * Returns the repetition penalty.
     *
     * @return the penalty; 1 for none
     */
    public double repetitionPenalty() {
        return repetitionPenalty;
    }

    /**
     * Returns the seed.
     *
     * @return the seed, if one was set
     */
    public OptionalLong seed() {
        return seed == null ? OptionalLong.empty() : OptionalLong.of(seed);
    }

    /**
     * Returns the tokens that end the generation, besides the model's own.
     *
     * @return a copy of the tokens
     */
    public int[] stopTokens() {
        return stopTokens.clone();
    }

    /**
     * Returns the strings that end the generation.
     *
     * @return the strings
     */
    public List<String> stopStrings() {
        return stopStrings;
    }

    /**
     * Tells whether the tokens with which the model ends a text do not end the generation.
     *
     * @return whether it goes on
     */
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
         * Sets the prompt. This or {@link #setPromptTokens} is required.
         *
         * @param prompt the text, to which the tokenizer adds the tokens that begin one
         * @return this builder
         */
        public Builder setPrompt(String prompt) {
            this.prompt = prompt;
            return this;
        }

        /**
         * Sets the prompt by its tokens, which are taken as they are.
         *
         * @param tokens the tokens
         * @return this builder
         */
        public Builder setPromptTokens(int... tokens) {
            promptTokens = tokens == null ? null : tokens.clone();
            return this;
        }

        /**
         * Sets how many tokens to generate at most.
         *
         * @param maxNewTokens the number, 1 or more; 128 unless set
         * @return this builder
         */
        public Builder optMaxNewTokens(int maxNewTokens) {
            this.maxNewTokens = maxNewTokens;
            return this;
        }

        /**
         * Sets by what scores are divided before a token is drawn.
         *
         * @param temperature the temperature, 0 or more; with 0, as unless set, the most probable
         *     token is taken
         * @return this builder
         */
        public Builder optTemperature(double temperature) {
            this.temperature = temperature;
            return this;
        }

        /**
         * Draws among the most probable tokens only.
         *
         * @param topK how many, 0 or more; 0 for all, as unless set
         * @return this builder
         */
        public Builder optTopK(int topK) {
            this.topK = topK;
            return this;
        }

        /**
         * Draws among the fewest most probable tokens only that together have a probability
         * (Holtzman et al., 2019, <a href="https://arxiv.org/abs/1904.09751">arXiv:1904.09751</a>).
         *
         * @param topP the probability, above 0 and at most 1; 1 for all tokens, as unless set
         * @return this builder
         */
        public Builder optTopP(double topP) {
            this.topP = topP;
            return this;
        }

        /**
         * Lowers the scores of tokens that are in the prompt or were generated: positive ones are
         * divided, negative ones multiplied (Keskar et al., 2019, <a
         * href="https://arxiv.org/abs/1909.05858">arXiv:1909.05858</a>).
         *
         * @param repetitionPenalty by what, above 0; 1 for not at all, as unless set
         * @return this builder
         */
        public Builder optRepetitionPenalty(double repetitionPenalty) {
            this.repetitionPenalty = repetitionPenalty;
            return this;
        }

        /**
         * Sets what tokens are drawn with. On the same ranks, the same request with the same seed
         * gives the same tokens, alone or among others, of a model in float16 or bfloat16. One in
         * float32 reads tokens of several requests together, and how many there are may change the
         * last bits of its scores: tokens differ only where these decide between two, and from
         * there on.
         *
         * @param seed the seed; a random one unless set
         * @return this builder
         */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        /**
         * Sets tokens that end the generation, besides the model's own.
         *
         * @param tokens the tokens
         * @return this builder
         */
        public Builder optStopTokens(int... tokens) {
            stopTokens = tokens == null ? null : tokens.clone();
            return this;
        }

        /**
         * Sets strings that end the generation. They take a tokenizer.
         *
         * @param strings the strings, none of them empty
         * @return this builder
         */
        public Builder optStopStrings(List<String> strings) {
            stopStrings = strings;
            return this;
        }

        /**
         * Sets whether to go on after the tokens with which the model ends a text.
         *
         * @param ignoreEndOfText whether to go on; not unless set
         * @return this builder
         */
        public Builder optIgnoreEndOfText(boolean ignoreEndOfText) {
            this.ignoreEndOfText = ignoreEndOfText;
            return this;
        }

        /**
         * Builds the request.
         *
         * @return the request
         * @throws IllegalArgumentException if a value is wrong; the message names it
         */
        public GenerationRequest build() {
            check((prompt == null) != (promptTokens == null), "set either a prompt or its tokens");
            check(prompt == null || !prompt.isEmpty(), "the prompt is empty");
            check(promptTokens == null || promptTokens.length > 0, "the prompt has no tokens");
            check(maxNewTokens >= 1, "maxNewTokens must be 1 or more, not " + maxNewTokens);
            check(
                    temperature >= 0 && Double.isFinite(temperature),
                    "temperature must be a number from 0, not " + temperature);
            check(topK >= 0, "topK must be 0 or more, not " + topK);
            check(topP > 0 && topP <= 1, "topP must be above 0 and at most 1, not " + topP);
            check(
                    repetitionPenalty > 0 && Double.isFinite(repetitionPenalty),
                    "repetitionPenalty must be a number above 0, not " + repetitionPenalty);
            check(stopTokens != null, "stopTokens is null");
            check(stopStrings != null, "stopStrings is null");
            check(
                    stopStrings.stream().noneMatch(stop -> stop == null || stop.isEmpty()),
                    "stopStrings has an empty string: " + stopStrings);
            stopStrings = List.copyOf(stopStrings);
            return new GenerationRequest(this);
        }

        private static void check(boolean right, String problem) {
            if (!right) {
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
