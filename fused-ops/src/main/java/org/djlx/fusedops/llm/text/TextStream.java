/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.text;

import java.util.Arrays;
import java.util.List;

/**
 * Turns a sequence's tokens into text as they come. A token may hold but a part of a character, and
 * what it looks like may depend on those before; so text is decoded with some of them, and held
 * back until it is certain and no stop string can begin in it. For one thread at a time.
 */
public final class TextStream {

    // How many tokens of the prompt are decoded with the first that follow, as vLLM does.
    private static final int CONTEXT = 5;

    private final TextTokenizer tokenizer; // null if there is none
    private final List<String> stops;
    private int[] tokens; // those since the last certain text, after some before
    private int certain; // how many of them have been decoded
    private final StringBuilder held = new StringBuilder();
    private boolean stopped;

    public TextStream(TextTokenizer tokenizer, List<String> stops, int[] prompt) {
        this.tokenizer = tokenizer;
        this.stops = stops;
        tokens = Arrays.copyOfRange(prompt, Math.max(0, prompt.length - CONTEXT), prompt.length);
        certain = tokens.length;
    }

    /** Adds a token, and returns the text that has become certain with it. */
    public String add(int token) {
        if (tokenizer == null) {
            return "";
        }
        tokens = Arrays.copyOf(tokens, tokens.length + 1);
        tokens[tokens.length - 1] = token;
        decode(false);
        return release();
    }

    /** Returns whether a stop string has come. */
    public boolean isStopped() {
        return stopped;
    }

    /** Returns what was held back, when no more tokens come. */
    public String end() {
        if (tokenizer == null || stopped) {
            return "";
        }
        decode(true);
        String text = release();
        if (!stopped) {
            text += held;
            held.setLength(0);
        }
        return text;
    }

    private void decode(boolean all) {
        String before = tokenizer.decode(Arrays.copyOf(tokens, certain));
        String now = tokenizer.decode(tokens);
        if (now.length() > before.length() && (all || !now.endsWith("\uFFFD"))) {
            held.append(now, before.length(), now.length());
            tokens = Arrays.copyOfRange(tokens, certain, tokens.length);
            certain = tokens.length;
        }
    }

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
            end -= stops.stream().mapToInt(this::begun).max().orElse(0);
        }
        String text = held.substring(0, end);
        held.delete(0, stopped ? held.length() : end);
        return text;
    }

    /** Returns how much of a stop string is at the end. */
    private int begun(String stop) {
        for (int length = Math.min(stop.length() - 1, held.length()); length > 0; length--) {
            if (held.indexOf(stop.substring(0, length), held.length() - length) >= 0) {
                return length;
            }
        }
        return 0;
    }
}
