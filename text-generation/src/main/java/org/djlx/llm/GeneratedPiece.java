// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.util.List;
import org.djlx.llm.sampling.TokenLogProbability;

/**
 * A generated token and the text that it completes. The concatenated texts of all pieces of a
 * {@link Generation} are the generated text.
 *
 * @param text the text; empty while the token is only a part of a character or may begin a stop
 *     string, and if the generator has no tokenizer. The texts never contain a stop token, a stop
 *     string, or text after a stop string
 * @param logProbability the log probability of the token, before penalties, biases and temperature
 * @param topLogProbabilities the most probable tokens at this place, as many as the request
 *     {@linkplain GenerationRequest.Builder#optTopLogProbabilities asks for}, the most probable
 *     first
 */
public record GeneratedPiece(
        int token,
        String text,
        float logProbability,
        List<TokenLogProbability> topLogProbabilities) {

    /** Creates a piece without the most probable tokens. */
    public GeneratedPiece(int token, String text, float logProbability) {
        this(token, text, logProbability, List.of());
    }
}
