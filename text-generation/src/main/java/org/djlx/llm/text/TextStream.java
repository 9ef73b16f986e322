// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.Arrays;
import java.util.List;

/**
 * Detokenizes one sequence incrementally, and searches for stop strings. A token may be only a part
 * of a character, and its text may depend on preceding tokens. So unless the tokenizer knows {@link
 * TextTokenizer#addedText}, the token is decoded together with a few preceding tokens. Text is held
 * back until it is complete and cannot be the beginning of a stop string. Not thread-safe.
 */
public final class TextStream {

    // How many prompt tokens are decoded with the first generated tokens; the same as in vLLM.
    private static final int CONTEXT = 5;

    // More tokens than a character has. A model may write bytes that are no characters, or only
    // special tokens: without this limit, each further token would decode all of them again.
    private static final int MAX_UNDECODED = 64;

    private final TextTokenizer tokenizer; // null if there is none
    private final List<String> stops;
    private int[] tokens; // the last decoded tokens, as context, then the tokens not decoded yet
    private int decoded; // the number of decoded tokens in `tokens`
    private boolean begun; // there is text: decoders may drop a blank at its beginning
    private final StringBuilder held = new StringBuilder(); // complete text that is held back
    private boolean stopped;

    /** {@code tokenizer} is null if there is none: all texts are then empty. */
    public TextStream(TextTokenizer tokenizer, List<String> stops, int[] prompt) {
        this.tokenizer = tokenizer;
        this.stops = stops;
        tokens = Arrays.copyOfRange(prompt, Math.max(0, prompt.length - CONTEXT), prompt.length);
        decoded = tokens.length;
    }

    /**
     * Adds a token; returns the text that is complete now, which may be empty. {@code mayStop}:
     * whether stop strings count in the text up to this token.
     */
    public String add(int token, boolean mayStop) {
        if (tokenizer == null) {
            return "";
        }
        String text = begun && decoded == tokens.length ? tokenizer.addedText(token) : null;
        if (text == null) {
            tokens = Arrays.copyOf(tokens, tokens.length + 1);
            tokens[tokens.length - 1] = token;
            decode(false);
        } else {
            tokens = new int[] {token};
            decoded = 1;
            if (stops.isEmpty()) {
                return text; // Nothing is held back.
            }
            held.append(text);
        }
        return mayStop ? release() : releaseAll();
    }

    private String releaseAll() {
        String text = held.toString();
        held.setLength(0);
        return text;
    }

    /** {@return whether the text contains a stop string} */
    public boolean isStopped() {
        return stopped;
    }

    /** Ends the stream; returns the text that was held back, which may be empty. */
    public String end() {
        if (tokenizer == null || stopped) {
            return "";
        }
        if (decoded < tokens.length) {
            decode(true);
        }
        String text = release();
        if (!stopped) {
            text += releaseAll();
        }
        return text;
    }

    /**
     * Decodes the tokens. Keeps an incomplete character for later, unless {@code all} is set or
     * {@link #MAX_UNDECODED} is reached.
     */
    private void decode(boolean all) {
        String before = tokenizer.decode(Arrays.copyOf(tokens, decoded));
        String now = tokenizer.decode(tokens);
        boolean isWhole = now.length() > before.length() && (all || !now.endsWith("\uFFFD"));
        if (isWhole || tokens.length - decoded >= MAX_UNDECODED) {
            begun |= !now.isEmpty();
            held.append(now, Math.min(before.length(), now.length()), now.length());
            tokens = Arrays.copyOfRange(tokens, decoded, tokens.length);
            decoded = tokens.length;
        }
    }

    /** Removes and returns the held text up to a complete or possible stop string. */
    private String release() {
        int end = held.length();
        for (String stop : stops) {
            int index = held.indexOf(stop);
            if (index >= 0) {
                end = Math.min(end, index);
                stopped = true;
            }
        }
        if (!stopped) {
            end -= stops.stream().mapToInt(stop -> beginningLength(stop, held)).max().orElse(0);
        }
        String text = held.substring(0, end);
        held.delete(0, stopped ? held.length() : end);
        return text;
    }

    /** Returns the length of the longest beginning of a stop string or marker at a text's end. */
    static int beginningLength(String stop, StringBuilder text) {
        int length = Math.min(stop.length() - 1, text.length());
        while (!stop.startsWith(text.substring(text.length() - length))) {
            length--;
        }
        return length;
    }
}
