// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.sampling.SamplingOptions;

/**
 * A request to generate text: prompt, sampling parameters and stop conditions. The parameters apply
 * to the logits in this order, as in vLLM: grammar, bias, repetition penalty, frequency penalty,
 * presence penalty, temperature, min-p, top-k, top-p. Immutable.
 */
public final class GenerationRequest implements SamplingOptions {

    public static final int MAX_TOP_LOG_PROBABILITIES = 20;

    private final Builder values; // never changed

    private GenerationRequest(Builder values) {
        this.values = values;
    }

    public static Builder builder() {
        return new Builder();
    }

    /** {@return the prompt's text; empty if the prompt was set by its tokens} */
    public Optional<String> prompt() {
        return Optional.ofNullable(values.prompt);
    }

    /** {@return a copy of the prompt's tokens; empty if the prompt was set as text} */
    public Optional<int[]> promptTokens() {
        return Optional.ofNullable(values.promptTokens).map(int[]::clone);
    }

    public int maxTokens() {
        return values.maxTokens;
    }

    @Override
    public double temperature() {
        return values.temperature;
    }

    @Override
    public int topK() {
        return values.topK;
    }

    @Override
    public double topP() {
        return values.topP;
    }

    @Override
    public double repetitionPenalty() {
        return values.repetitionPenalty;
    }

    @Override
    public OptionalLong seed() {
        return values.seed == null ? OptionalLong.empty() : OptionalLong.of(values.seed);
    }

    /**
     * {@return a copy of the stop tokens, which end generation in addition to the model's
     * end-of-text tokens}
     */
    public int[] stopTokens() {
        return values.stopTokens.clone();
    }

    public List<String> stopStrings() {
        return values.stopStrings;
    }

    public boolean ignoresEndOfText() {
        return values.ignoreEndOfText;
    }

    @Override
    public double minP() {
        return values.minP;
    }

    @Override
    public double frequencyPenalty() {
        return values.frequencyPenalty;
    }

    @Override
    public double presencePenalty() {
        return values.presencePenalty;
    }

    @Override
    public Map<Integer, Double> logitBias() {
        return values.logitBias;
    }

    @Override
    public int minTokens() {
        return values.minTokens;
    }

    public Optional<Grammar> grammar() {
        return Optional.ofNullable(values.grammar);
    }

    /** {@return the name of the LoRA adapter; empty for the model without one} */
    public Optional<String> adapter() {
        return Optional.ofNullable(values.adapter);
    }

    @Override
    public int topLogProbabilities() {
        return values.topLogProbabilities;
    }

    public boolean hasPromptLogProbabilities() {
        return values.promptLogProbabilities;
    }

    public static final class Builder implements Cloneable {

        private String prompt;
        private int[] promptTokens;
        private int maxTokens = 128;
        private double temperature;
        private int topK;
        private double topP = 1;
        private double repetitionPenalty = 1;
        private Long seed;
        private int[] stopTokens = {};
        private List<String> stopStrings = List.of();
        private boolean ignoreEndOfText;
        private double minP;
        private double frequencyPenalty;
        private double presencePenalty;
        private Map<Integer, Double> logitBias = Map.of();
        private int minTokens;
        private Grammar grammar;
        private String adapter;
        private int topLogProbabilities;
        private boolean promptLogProbabilities;

        private Builder() {}

        /**
         * Sets the prompt as text, to which the tokenizer adds its special tokens. Either this or
         * {@link #setPromptTokens} is required.
         */
        public Builder setPrompt(String prompt) {
            this.prompt = prompt;
            return this;
        }

        /**
         * Sets the prompt by its tokens; no special tokens are added. Either this or {@link
         * #setPrompt} is required.
         */
        public Builder setPromptTokens(int... tokens) {
            promptTokens = tokens == null ? null : tokens.clone();
            return this;
        }

        /** Sets the maximum number of tokens to generate, 1 or more; default 128. */
        public Builder optMaxTokens(int maxTokens) {
            this.maxTokens = maxTokens;
            return this;
        }

        /**
         * Sets the temperature, by which the logits are divided, 0 or more; default 0, greedy
         * sampling.
         */
        public Builder optTemperature(double temperature) {
            this.temperature = temperature;
            return this;
        }

        /** Samples only from the {@code topK} most probable tokens; default 0, all tokens. */
        public Builder optTopK(int topK) {
            this.topK = topK;
            return this;
        }

        /**
         * Samples only from the smallest set of most probable tokens that together have the
         * probability {@code topP}, above 0 and at most 1 (nucleus sampling: Holtzman et al., 2019,
         * <a href="https://arxiv.org/abs/1904.09751">arXiv:1904.09751</a>); default 1, all tokens.
         */
        public Builder optTopP(double topP) {
            this.topP = topP;
            return this;
        }

        /**
         * Lowers the logits of tokens that occur in the prompt or in the generated text: positive
         * logits are divided by the penalty, above 0, negative logits multiplied (Keskar et al.,
         * 2019, <a href="https://arxiv.org/abs/1909.05858">arXiv:1909.05858</a>); default 1, no
         * change.
         */
        public Builder optRepetitionPenalty(double repetitionPenalty) {
            this.repetitionPenalty = repetitionPenalty;
            return this;
        }

        /**
         * Sets the seed of the random numbers; default random. When the same seed gives the same
         * text: docs/text-generation.md, Reproducibility.
         */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        /** Sets stop tokens, in addition to the model's end-of-text tokens; default none. */
        public Builder optStopTokens(int... tokens) {
            stopTokens = tokens == null ? null : tokens.clone();
            return this;
        }

        /** Sets stop strings, none of them empty; default none. The model must have a tokenizer. */
        public Builder optStopStrings(List<String> strings) {
            stopStrings = strings;
            return this;
        }

        /**
         * Sets whether generation continues after the model's end-of-text tokens; default false.
         */
        public Builder optIgnoreEndOfText(boolean ignoreEndOfText) {
            this.ignoreEndOfText = ignoreEndOfText;
            return this;
        }

        /**
         * Samples only from tokens that are at least {@code minP} times as probable as the most
         * probable token (Nguyen et al., 2024, <a
         * href="https://arxiv.org/abs/2407.01082">arXiv:2407.01082</a>); from 0, the default for
         * all tokens, to 1.
         */
        public Builder optMinP(double minP) {
            this.minP = minP;
            return this;
        }

        /**
         * Subtracts the penalty, from -2 to 2, from the logit of a token for each time it was
         * generated; default 0.
         */
        public Builder optFrequencyPenalty(double frequencyPenalty) {
            this.frequencyPenalty = frequencyPenalty;
            return this;
        }

        /**
         * Subtracts the penalty, from -2 to 2, from the logits of tokens that were generated;
         * default 0.
         */
        public Builder optPresencePenalty(double presencePenalty) {
            this.presencePenalty = presencePenalty;
            return this;
        }

        /**
         * Adds a value from -100 to 100 to the logits of tokens, before the penalties; default
         * none.
         */
        public Builder optLogitBias(Map<Integer, Double> logitBias) {
            this.logitBias = logitBias;
            return this;
        }

        /**
         * Generates no end-of-text token and no stop token before this number of new tokens, from
         * 0, the default, to the maximum number. Stop strings in the text of these tokens are
         * ignored.
         */
        public Builder optMinTokens(int minTokens) {
            this.minTokens = minTokens;
            return this;
        }

        /**
         * Generates only texts of a grammar (structured output); default null, any text. The model
         * must have a tokenizer.
         */
        public Builder optGrammar(Grammar grammar) {
            this.grammar = grammar;
            return this;
        }

        /**
         * Generates with a {@linkplain TextGenerator#loadAdapter loaded} LoRA adapter; default
         * null, the model without one.
         */
        public Builder optAdapter(String name) {
            adapter = name;
            return this;
        }

        /**
         * Lists the most probable tokens in each {@link GeneratedPiece}, from 0, the default, to
         * {@link #MAX_TOP_LOG_PROBABILITIES}, with the log probabilities of the model: before
         * penalties, biases and temperature.
         */
        public Builder optTopLogProbabilities(int count) {
            topLogProbabilities = count;
            return this;
        }

        /**
         * Sets whether the log probabilities of the prompt's tokens are computed, too: {@link
         * Generation#promptPieces}; default false. Such a prompt is computed in decode steps, which
         * takes longer, and does not use the prefix cache.
         */
        public Builder optPromptLogProbabilities(boolean promptLogProbabilities) {
            this.promptLogProbabilities = promptLogProbabilities;
            return this;
        }

        /** Throws an {@link IllegalArgumentException} that names a value out of range. */
        public GenerationRequest build() {
            check((prompt == null) != (promptTokens == null), "set either prompt or promptTokens");
            check(prompt == null || !prompt.isEmpty(), "the prompt is empty");
            check(promptTokens == null || promptTokens.length > 0, "the prompt has no tokens");
            check(maxTokens >= 1, "maxTokens must be 1 or more, not " + maxTokens);
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
            checkRange("minP", minP, 0, 1);
            checkRange("frequencyPenalty", frequencyPenalty, -2, 2);
            checkRange("presencePenalty", presencePenalty, -2, 2);
            check(logitBias != null, "logitBias is null");
            logitBias.forEach(
                    (token, bias) -> checkRange("logitBias of " + token, bias, -100, 100));
            checkRange("minTokens", minTokens, 0, maxTokens);
            checkRange("topLogProbabilities", topLogProbabilities, 0, MAX_TOP_LOG_PROBABILITIES);
            try {
                Builder values = (Builder) clone();
                values.stopStrings = List.copyOf(stopStrings);
                values.logitBias = Map.copyOf(logitBias);
                return new GenerationRequest(values);
            } catch (CloneNotSupportedException e) {
                throw new AssertionError(e); // Builders are cloneable.
            }
        }

        private static void checkRange(String name, double value, double least, double most) {
            check(
                    value >= least && value <= most,
                    name + " must be from " + least + " to " + most + ", not " + value);
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
                values.prompt != null
                        ? values.prompt.length() + " characters"
                        : values.promptTokens.length + " tokens";
        return "request(prompt of " + of + ", at most " + maxTokens() + " new tokens)";
    }
}
