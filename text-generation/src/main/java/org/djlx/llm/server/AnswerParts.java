// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.text.AnswerStream;

/** Divides the pieces of one choice into reasoning, content and calls of tools. */
final class AnswerParts {

    private final Map<Integer, String> markers;
    private final boolean hasReasoning;
    private final AnswerStream stream;
    private int reasoningTokens;

    /**
     * {@code markers} are the texts of special tokens, which detokenizing leaves out; {@code
     * hasReasoning}: whether the parts include the reasoning.
     */
    AnswerParts(Map<Integer, String> markers, boolean hasReasoning, AnswerStream stream) {
        this.markers = markers;
        this.hasReasoning = hasReasoning;
        this.stream = stream;
    }

    List<AnswerStream.Part> add(GeneratedPiece piece) {
        boolean wasReasoning = stream.isReasoning();
        List<AnswerStream.Part> parts =
                stream.add(markers.getOrDefault(piece.token(), "") + piece.text());
        reasoningTokens += wasReasoning || stream.isReasoning() ? 1 : 0;
        return included(parts);
    }

    List<AnswerStream.Part> end() {
        return included(stream.end());
    }

    private List<AnswerStream.Part> included(List<AnswerStream.Part> parts) {
        return hasReasoning
                ? parts
                : parts.stream().filter(part -> part.reasoning().isEmpty()).toList();
    }

    /** Returns the parts of a whole answer. */
    List<AnswerStream.Part> all(List<GeneratedPiece> pieces) {
        Stream<AnswerStream.Part> added = pieces.stream().flatMap(piece -> add(piece).stream());
        return Stream.concat(added, Stream.of(this).flatMap(each -> each.end().stream())).toList();
    }

    int calls() {
        return stream.calls();
    }

    int reasoningTokens() {
        return reasoningTokens;
    }
}
