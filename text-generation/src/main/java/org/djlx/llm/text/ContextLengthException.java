// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

/** A prompt and its new tokens are longer than the maximum length of a generator. */
public final class ContextLengthException extends IllegalArgumentException {

    private static final long serialVersionUID = 1;

    private final String prompt;

    /** The requested number of new tokens; 0 if the prompt alone is too long. */
    private final int maxTokens;

    private final int maxLength;

    public ContextLengthException(int promptTokens, int maxTokens, int maxLength) {
        this(promptTokens + " tokens", promptTokens <= maxLength ? maxTokens : 0, maxLength);
    }

    private ContextLengthException(String prompt, int maxTokens, int maxLength) {
        super(
                "generation request: "
                        + text(
                                prompt,
                                maxTokens,
                                "maxTokens",
                                "the maxLength " + maxLength + " of this generator"));
        this.prompt = prompt;
        this.maxTokens = maxTokens;
        this.maxLength = maxLength;
    }

    /** Returns the message for a client of an API, with its name of the number of new tokens. */
    public String text(String maxTokensName) {
        String limit = "the context length of this model, " + maxLength + " tokens";
        return text(prompt, maxTokens, maxTokensName, limit);
    }

    private static String text(String prompt, int maxTokens, String maxTokensName, String limit) {
        if (maxTokens == 0) {
            return String.format(
                    "the prompt has %s, more than %s; shorten the prompt", prompt, limit);
        }
        return String.format(
                "the prompt has %s and %s is %d, together more than %s; shorten the prompt or ask"
                        + " for fewer new tokens",
                prompt, maxTokensName, maxTokens, limit);
    }

    /**
     * Throws, before a prompt is encoded, which may take seconds, if it certainly has more tokens
     * than a sequence.
     */
    public static void check(String prompt, TextTokenizer tokenizer, int maxLength) {
        long least = tokenizer.leastTokens(prompt);
        if (least > maxLength) {
            throw new ContextLengthException(
                    prompt.length() + " characters, " + least + " tokens or more", 0, maxLength);
        }
    }
}
