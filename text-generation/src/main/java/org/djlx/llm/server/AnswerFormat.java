// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.util.List;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;

/**
 * Formats the answer to one request, which has one or more choices for each prompt. Not
 * thread-safe.
 *
 * <ul>
 *   <li>Not streamed: {@link #whole} returns the answer.
 *   <li>Streamed: call {@link #begin}, then {@link #piece} for each piece and {@link #end(int,
 *       Generation)} for each choice, then {@link #end(List)}. After a failure, call {@link
 *       #failure} instead of the remaining methods.
 * </ul>
 */
public interface AnswerFormat {

    boolean isStreamed();

    default String contentType() {
        return isStreamed() ? "text/event-stream" : "application/json";
    }

    /** {@return the text that begins a streamed answer; may be empty, like all texts to send} */
    default String begin() {
        return "";
    }

    /** {@return a piece of a streamed answer} */
    String piece(int choice, GeneratedPiece piece, Generation generation);

    /** {@return the end of a choice of a streamed answer, whose generation has ended} */
    String end(int choice, Generation generation);

    /** {@return the end of a streamed answer, after all choices have ended} */
    String end(List<Generation> generations);

    /**
     * {@return the end of a streamed answer after a failure} The start of the answer has been sent.
     */
    String failure(ApiException failure);

    /** {@return an error before the answer begins, in the schema of the request} */
    default ApiException refusal(ApiException failure) {
        return failure;
    }

    /** {@return an answer that is not streamed, of all pieces of each choice} */
    String whole(List<List<GeneratedPiece>> pieces, List<Generation> generations);
}
