// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm;

import org.djlx.fusedops.llm.text.TextTokenizer;

/** A prompt and its new tokens are longer than {@link TextGenerator#maxLength}. */
public final class ContextLengthException extends IllegalArgumentException {

    private static final long serialVersionUID = 1;

    /**
     * Creates an exception.
     *
     * @param message says the lengths
     */
    public ContextLengthException(String message) {
        super(message);
    }

    /**
     * Checks the length of a prompt before it is encoded, which may take seconds.
     *
     * @param characters the length of the prompt
     * @param tokenizer the model's tokenizer
     * @param maxLength the maximum number of tokens of a sequence
     * @throws ContextLengthException if the prompt certainly has more tokens
     */
    public static void check(long characters, TextTokenizer tokenizer, int maxLength) {
        long least = tokenizer.leastTokens(characters);
        if (least > maxLength) {
            throw new ContextLengthException(
                    String.format(
                            "generation request: the prompt has %d characters, %d tokens or more,"
                                    + " but the maxLength of this generator is %d; shorten the"
                                    + " prompt",
                            characters, least, maxLength));
        }
    }
}
