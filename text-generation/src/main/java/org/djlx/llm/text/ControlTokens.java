// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.llm.text.template.Template;

/**
 * Texts that a tokenizer takes for one token, such as the end of a message, and that must not come
 * from a client. While a template runs, a stand-in replaces the first character of each such text
 * of a client: an unpaired surrogate, which no valid text has. Behind it the rendered text is
 * divided, and the parts are tokenized one by one.
 */
final class ControlTokens {

    private static final char STAND_IN = Character.MIN_LOW_SURROGATE;

    private final Map<Integer, List<String>> tokens = new HashMap<>(); // by first character
    private final List<Integer> firsts = new ArrayList<>(); // by stand-in

    ControlTokens(Collection<String> tokens) {
        this(tokens, tokens);
    }

    /** Creates control tokens whose stand-ins are those of more tokens. */
    ControlTokens(Collection<String> tokens, Collection<String> more) {
        for (String token : more) {
            // A token of one character cannot be divided.
            int first = token.isEmpty() ? 0 : token.codePointAt(0);
            if (token.length() > Character.charCount(first)) {
                if (!firsts.contains(first)) {
                    firsts.add(first);
                }
                if (tokens.contains(token)) {
                    this.tokens.computeIfAbsent(first, c -> new ArrayList<>()).add(token);
                }
            }
        }
    }

    /** Hides the tokens in a client's text, and what could begin one at its end. */
    String hide(String text) {
        StringBuilder hidden = new StringBuilder();
        for (int i = 0; i < text.length(); ) {
            int c = text.codePointAt(i);
            boolean isUnpaired = c >= Character.MIN_SURROGATE && c <= Character.MAX_SURROGATE;
            boolean begins = false;
            for (String token : tokens.getOrDefault(c, List.of())) {
                int length = Math.min(token.length(), text.length() - i);
                begins |= text.regionMatches(i, token, 0, length);
            }
            if (begins) {
                hidden.append((char) (STAND_IN + firsts.indexOf(c)));
            } else {
                hidden.appendCodePoint(isUnpaired ? '\uFFFD' : c);
            }
            i += Character.charCount(c);
        }
        return hidden.toString();
    }

    /** Hides the tokens in all texts of a value, and copies it. */
    Object hide(Object value) {
        if (value instanceof Map<?, ?> map) {
            Map<Object, Object> hidden = new LinkedHashMap<>();
            map.forEach(
                    (key, each) -> {
                        Object copy = hide(each);
                        boolean isCall = "arguments".equals(key) && copy instanceof Map;
                        hidden.put(
                                hide(key),
                                isCall ? new Template.Arguments((Map<?, ?>) copy) : copy);
                    });
            return hidden;
        }
        if (value instanceof List<?> list) {
            List<Object> hidden = new ArrayList<>();
            list.forEach(each -> hidden.add(hide(each)));
            return hidden;
        }
        return value instanceof String text ? hide(text) : value;
    }

    /**
     * Returns the parts of a rendered text, without stand-ins, that are to be tokenized one by one.
     */
    List<String> parts(String text) {
        List<String> parts = new ArrayList<>();
        StringBuilder part = new StringBuilder();
        for (int i = 0; i < text.length(); ) {
            int c = text.codePointAt(i);
            i += Character.charCount(c);
            int index = c - STAND_IN;
            if (index >= 0 && index < firsts.size()) {
                parts.add(part.appendCodePoint(firsts.get(index)).toString());
                part.setLength(0);
            } else {
                part.appendCodePoint(c);
            }
        }
        if (part.length() > 0) {
            parts.add(part.toString());
        }
        return parts;
    }
}
