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

    /** {@return whether the client has asked for a streamed answer} */
    boolean isStreamed();

    /** {@return the MIME type of the answer} */
    default String contentType() {
        return isStreamed() ? "text/event-stream" : "application/json";
    }

    /** {@return the text that begins a streamed answer; may be empty, like all texts to send} */
    default String begin() {
        return "";
    }

    /**
     * Formats a piece of a streamed answer.
     *
     * @param choice the index of the choice
     * @return the text to send
     */
    String piece(int choice, GeneratedPiece piece, Generation generation);

    /**
     * Ends a choice of a streamed answer.
     *
     * @param choice the index of the choice
     * @param generation its generation, which has ended
     * @return the text to send
     */
    String end(int choice, Generation generation);

    /**
     * Ends a streamed answer after all choices have ended.
     *
     * @param generations the generation of each choice
     * @return the text to send
     */
    String end(List<Generation> generations);

    /**
     * Ends a streamed answer after a failure. The start of the answer has been sent.
     *
     * @param failure the error
     * @return the text to send
     */
    String failure(ApiException failure);

    /**
     * Formats an error that occurs before the answer begins.
     *
     * @param failure the error
     * @return the same error in the schema of the request
     */
    default ApiException refusal(ApiException failure) {
        return failure;
    }

    /**
     * Formats an answer that is not streamed.
     *
     * @param pieces all pieces of each choice
     * @param generations the generation of each choice, which has ended
     * @return the answer
     */
    String whole(List<List<GeneratedPiece>> pieces, List<Generation> generations);
}
