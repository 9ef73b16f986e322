// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.List;
import java.util.Set;

/** Encodes text to tokens and decodes tokens to text. Thread-safe. */
public interface TextTokenizer extends AutoCloseable {

    /**
     * Encodes a text; special tokens in it become tokens. {@code specialTokens}: whether to add the
     * tokenizer's, such as the begin-of-text token; false if a chat template has written them.
     */
    int[] encode(String text, boolean specialTokens);

    /**
     * {@return a lower limit of the number of tokens of a text} Costs far less than to encode it,
     * so that a text which is certainly too long need not be encoded.
     */
    default long leastTokens(String text) {
        return 0;
    }

    /** Decodes tokens, without special ones. An incomplete character at the end becomes U+FFFD. */
    String decode(int[] tokens);

    /**
     * {@return the text that a token adds to whole characters of other tokens before it; null if it
     * depends on these tokens, or if the token is a part of a character}
     */
    default String addedText(int token) {
        return null;
    }

    /** {@return the special tokens as they are written in a text} */
    Set<String> specialTokens();

    /**
     * {@return all tokens that are taken from a text before it is divided into others, as they are
     * written: the special tokens, and those that are not marked special, such as Qwen 3's {@code
     * <think>}}
     */
    default Set<String> addedTokens() {
        return specialTokens();
    }

    /**
     * {@return the bytes that each token stands for, by token; null for special tokens} Needed for
     * requests with a grammar only.
     *
     * @throws IllegalArgumentException if the tokenizer does not tell
     */
    default List<byte[]> tokenBytes() {
        throw new IllegalArgumentException("this tokenizer does not tell the bytes of its tokens");
    }

    @Override
    void close();
}
