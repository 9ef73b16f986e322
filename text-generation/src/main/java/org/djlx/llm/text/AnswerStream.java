// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.List;

/**
 * Divides a generated text into reasoning, content and calls of tools while it is generated. Text
 * that may belong to another part is held back. Not thread-safe.
 */
public interface AnswerStream {

    /**
     * A part of an answer: {@code reasoning}, or {@code content}, or a part of the call with this
     * index, otherwise -1. The first part of a call has id and name, others null. {@code arguments}
     * are the next characters of JSON. Texts may be empty.
     */
    record Part(
            String reasoning, String content, int call, String id, String name, String arguments) {

        static Part reasoning(String text) {
            return new Part(text, "", -1, null, null, "");
        }

        static Part content(String text) {
            return new Part("", text, -1, null, null, "");
        }

        /** Creates a part of a call; {@code id} and {@code name} are null after the first one. */
        public static Part call(int call, String id, String name, String arguments) {
            return new Part("", "", call, id, name, arguments);
        }
    }

    /** Adds generated text, and returns the parts that are certain now. */
    List<Part> add(String generated);

    /** Ends the answer, and returns the parts that were held back; none, unless overridden. */
    default List<Part> end() {
        return List.of();
    }

    /** {@return the number of calls found so far; 0 unless overridden} */
    default int calls() {
        return 0;
    }

    /** {@return whether the next text is reasoning, as far as the text shows} */
    default boolean isReasoning() {
        return false;
    }
}
