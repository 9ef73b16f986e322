/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm;

import java.util.Collections;
import java.util.List;
import java.util.Optional;
import org.djlx.fusedops.llm.text.TextTokenizer;

/**
 * Generates text for many requests at a time, which join and leave a running batch. Thread-safe.
 *
 * <pre>{@code
 * Generation generation =
 *         generator.submit(GenerationRequest.builder().setPrompt("Once").optMaxNewTokens(20).build());
 * GeneratedPiece piece;
 * while ((piece = generation.next(Duration.ofSeconds(10))) != null) {
 *     System.out.print(piece.text());
 * }
 * }</pre>
 */
public interface TextGenerator extends AutoCloseable {

    /**
     * Accepts a request. Returns at once.
     *
     * @param request the request
     * @return the generation, whose pieces come from now on
     * @throws IllegalArgumentException if the model cannot do it; this and the following as {@link
     *     #submitAll} says
     * @throws java.util.concurrent.RejectedExecutionException if too many requests wait already
     * @throws IllegalStateException if the generator is closed, or its model is lost
     */
    default Generation submit(GenerationRequest request) {
        return submitAll(Collections.singletonList(request)).get(0);
    }

    /**
     * Accepts requests, which wait for their turn together; all of them or none. Returns at once.
     *
     * @param requests the requests, one or more
     * @return a generation for each, whose pieces come from now on
     * @throws IllegalArgumentException if the model cannot do one of them: the prompt is empty or,
     *     with what is to be generated, too long, or a token of it or one that is to end it is none
     *     of the model's; or if they are more than may wait
     * @throws java.util.concurrent.RejectedExecutionException if too many requests wait already
     * @throws IllegalStateException if the generator is closed, or its model is lost: {@link
     *     #unavailabilityCause()} says why
     */
    List<Generation> submitAll(List<GenerationRequest> requests);

    /**
     * Returns how many tokens a prompt and what is generated after it may have together.
     *
     * @return the tokens
     */
    int maxLength();

    /**
     * Returns the model's tokenizer, which lives as long as the generator.
     *
     * @return the tokenizer; empty if there is none, and requests hold tokens only
     */
    Optional<TextTokenizer> tokenizer();

    /**
     * Returns what is going on.
     *
     * @return counts, of one moment
     */
    GeneratorStatistics statistics();

    /**
     * Tells why no requests are accepted.
     *
     * @return the reason, or empty if they are: also while the model is loaded again after a rank
     *     has failed
     */
    Optional<String> unavailabilityCause();

    /**
     * Cancels all requests and frees the model. Returns when that is done; may be called again, and
     * by any thread but those that run listeners.
     */
    @Override
    void close();
}
