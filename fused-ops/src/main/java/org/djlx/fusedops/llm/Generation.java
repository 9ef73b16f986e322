/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeoutException;

/**
 * A request that a {@link TextGenerator} has accepted. Its pieces wait here until they are taken;
 * each is taken once. One thread takes them; all other methods may be called by any thread.
 */
public interface Generation {

    /**
     * Waits for the next piece and takes it.
     *
     * @param timeout how long to wait; with zero or less it is only looked whether there is one
     * @return the piece; null if there are no more, as the generation has ended
     * @throws TimeoutException if none has come; the generation goes on
     * @throws InterruptedException if the calling thread is interrupted; the generation goes on
     * @throws ai.djl.engine.EngineException if the generation has failed, after the pieces that
     *     came before
     */
    GeneratedPiece next(Duration timeout) throws TimeoutException, InterruptedException;

    /**
     * Waits for the end and takes the pieces that are left.
     *
     * @param timeout how long to wait
     * @return the pieces, in their order
     * @throws TimeoutException if it has not ended by then; the generation goes on and no piece is
     *     taken
     * @throws InterruptedException if the calling thread is interrupted; the same holds
     * @throws ai.djl.engine.EngineException if the generation has failed
     */
    List<GeneratedPiece> await(Duration timeout) throws TimeoutException, InterruptedException;

    /**
     * Ends the generation with {@link FinishReason#CANCELLED}, if it has not ended. Pieces that are
     * there can still be taken; its part of the cache is freed with the step that runs. Returns at
     * once.
     */
    void cancel();

    /**
     * Returns why it has ended.
     *
     * @return the reason; empty while it goes on
     */
    Optional<FinishReason> finishReason();

    /**
     * Returns what went wrong.
     *
     * @return the failure, if the reason is {@link FinishReason#ERROR}
     */
    Optional<Throwable> failure();

    /**
     * Returns the size of the prompt.
     *
     * @return its tokens
     */
    int promptTokens();

    /**
     * Returns how much has been generated so far, whether it was taken or not.
     *
     * @return tokens, the stop token included
     */
    int generatedTokens();

    /**
     * Runs code whenever there is something new: a piece, or the end. For callers that do not
     * block.
     *
     * @param listener is run by the generator's thread, and must not block; what it throws is
     *     logged. It is run once at once, by the calling thread, if there is something already. It
     *     replaces the one before
     */
    void onProgress(Runnable listener);
}
