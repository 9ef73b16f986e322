// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.List;
import java.util.Map;
import org.djlx.llm.text.AnswerStream.Part;

/**
 * Divides the generated tokens of an answer into reasoning, content and calls of tools; made by
 * {@link ChatFormat#newParts}. Not thread-safe.
 */
public final class AnswerParts {

    /** An answer that is only content, such as that of a completion. */
    private static final AnswerStream CONTENT = text -> List.of(Part.content(text));

    private final Map<Integer, String> markers;
    private final boolean hasReasoning;
    private final AnswerStream stream;
    private int reasoningTokens;

    /** Creates parts that are only content. */
    public AnswerParts() {
        this(Map.of(), true, CONTENT);
    }

    /**
     * {@code markers} are the texts of special tokens, which detokenizing leaves out; {@code
     * hasReasoning}: whether the parts include the reasoning; {@code stream} is null for an answer
     * that is only content.
     */
    AnswerParts(Map<Integer, String> markers, boolean hasReasoning, AnswerStream stream) {
        this.markers = markers;
        this.hasReasoning = hasReasoning;
        this.stream = stream == null ? CONTENT : stream;
    }

    /** Adds a token and the text that it completes, and returns the parts that are certain now. */
    public List<Part> add(int token, String text) {
        boolean wasReasoning = stream.isReasoning();
        List<Part> parts = stream.add(markers.getOrDefault(token, "") + text);
        reasoningTokens += wasReasoning || stream.isReasoning() ? 1 : 0;
        return included(parts);
    }

    /** Ends the answer, and returns the parts that were held back. */
    public List<Part> end() {
        return included(stream.end());
    }

    private List<Part> included(List<Part> parts) {
        return hasReasoning
                ? parts
                : parts.stream().filter(part -> part.reasoning().isEmpty()).toList();
    }

    /** {@return the number of calls found so far} */
    public int calls() {
        return stream.calls();
    }

    public int reasoningTokens() {
        return reasoningTokens;
    }
}
