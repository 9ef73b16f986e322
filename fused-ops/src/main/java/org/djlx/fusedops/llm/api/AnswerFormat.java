/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.api;

import java.util.List;
import org.djlx.fusedops.llm.GeneratedPiece;
import org.djlx.fusedops.llm.Generation;

/**
 * Words the answer to one request, which has a choice for each of its prompts. An answer is either
 * whole, and then {@link #whole} is all of it, or streamed: {@link #begin}, {@link #piece} for each
 * and an end for each choice, the end of all or {@link #failure}. For one thread at a time.
 */
public interface AnswerFormat {

    /**
     * Tells whether the client wants the answer piece by piece.
     *
     * @return whether it is streamed
     */
    boolean isStreamed();

    /**
     * Returns the type of what is sent.
     *
     * @return the MIME type
     */
    String contentType();

    /**
     * Begins a streamed answer.
     *
     * @return what to send; may be empty, as for the others
     */
    String begin();

    /**
     * Words a piece of a streamed answer.
     *
     * @param choice the place of its prompt among those of the request, from 0 on
     * @param piece the piece
     * @return what to send
     */
    String piece(int choice, GeneratedPiece piece);

    /**
     * Ends a choice of a streamed answer.
     *
     * @param choice the place of its prompt
     * @param generation the generation, which has ended
     * @return what to send
     */
    String end(int choice, Generation generation);

    /**
     * Ends a streamed answer, all of whose choices have ended.
     *
     * @param generations the generation of each choice
     * @return what to send
     */
    String end(List<Generation> generations);

    /**
     * Ends a streamed answer that failed on its way.
     *
     * @param failure what happened
     * @return what to send
     */
    String failure(ApiException failure);

    /**
     * Returns the refusal of an answer of which nothing has been sent.
     *
     * @param failure what happened
     * @return the same, in the form of the request's schema
     */
    ApiException refusal(ApiException failure);

    /**
     * Words an answer that is not streamed.
     *
     * @param pieces all pieces of each choice
     * @param generations the generation of each choice, which has ended
     * @return the answer
     */
    String whole(List<List<GeneratedPiece>> pieces, List<Generation> generations);
}
