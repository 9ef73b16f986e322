// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.sampling.TokenLogProbability;
import org.djlx.llm.text.TextTokenizer;
import org.junit.jupiter.api.Test;

/** The texts of tokens beside log probabilities. */
class LogProbabilitiesTest {

    /** A tokenizer whose tokens are characters, which notes what it decodes. */
    private static final class Characters implements TextTokenizer {

        final List<Integer> decoded = new ArrayList<>();

        @Override
        public int[] encode(String text, boolean specialTokens) {
            return text.chars().toArray();
        }

        @Override
        public String decode(int[] tokens) {
            decoded.add(tokens[tokens.length - 1]);
            return new String(tokens, 0, tokens.length);
        }

        @Override
        public Set<String> specialTokens() {
            return Set.of("!");
        }

        @Override
        public void close() {}
    }

    /** Answers are formatted on an event loop, and a token's text does not change. */
    @Test
    void aTokenIsDecodedOnce() {
        Characters tokenizer = new Characters();
        LogProbabilities formatter = new LogProbabilities(tokenizer);
        tokenizer.decoded.clear();
        List<TokenLogProbability> top =
                List.of(new TokenLogProbability('x', -1), new TokenLogProbability('!', -2));
        List<GeneratedPiece> pieces =
                List.of(
                        new GeneratedPiece('x', "x", -1, top),
                        new GeneratedPiece('y', "y", -3, top),
                        new GeneratedPiece('!', "", -2, top));
        String first = formatter.tokens(pieces).toString();
        assertEquals(first, formatter.tokens(pieces).toString());
        formatter.completion(pieces, 0);
        assertEquals(List.of((int) 'x', (int) 'y'), tokenizer.decoded);
    }
}
