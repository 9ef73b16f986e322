/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.text;

import java.util.Set;

/** Turns text into a model's tokens and back. Thread-safe. */
public interface TextTokenizer extends AutoCloseable {

    /**
     * Returns the tokens of a text.
     *
     * @param text the text
     * @param specialTokens whether to add those that the model's tokenizer puts around a text, such
     *     as the one that begins it; not if a chat template has written them
     * @return the tokens
     */
    int[] encode(String text, boolean specialTokens);

    /**
     * Returns the text of tokens, without special ones.
     *
     * @param tokens the tokens; the last may hold but a part of a character, which becomes U+FFFD
     * @return the text
     */
    String decode(int[] tokens);

    /**
     * Returns the special tokens, as they are written in a text. One that is in a text becomes that
     * token.
     *
     * @return the tokens
     */
    Set<String> specialTokens();

    @Override
    void close();
}
