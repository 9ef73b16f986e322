// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeoutException;

/**
 * A request that a {@link TextGenerator} has accepted, and the queue of its generated pieces. Each
 * piece is taken once. Only one thread may take pieces; all other methods are thread-safe.
 */
public interface Generation {

    /**
     * Takes the next piece. Blocks until there is one or the generation has ended.
     *
     * @return the piece; null if the generation has ended and all pieces were taken
     * @throws TimeoutException if the time is up; the generation continues, as after an {@link
     *     InterruptedException}
     * @throws ai.djl.engine.EngineException if the generation has failed and all pieces were taken
     */
    GeneratedPiece next(Duration timeout) throws TimeoutException, InterruptedException;

    /**
     * Takes the next piece if it has arrived. Does not block. An empty result means "nothing yet"
     * while the generation runs, and "no more" after its end. To distinguish the two, read {@link
     * #finishReason} <em>before</em> this call: if it was present and the result is empty, all
     * pieces were taken.
     *
     * @throws ai.djl.engine.EngineException if the generation has failed and all pieces were taken
     */
    Optional<GeneratedPiece> poll();

    /**
     * Waits for the end of the generation and takes all remaining pieces, in order.
     *
     * @throws TimeoutException if the time is up; no piece is taken and the generation continues,
     *     as after an {@link InterruptedException}
     * @throws ai.djl.engine.EngineException if the generation has failed
     */
    List<GeneratedPiece> await(Duration timeout) throws TimeoutException, InterruptedException;

    /**
     * Ends the generation with {@link FinishReason#CANCELLED}. No-op if the generation has ended.
     * Returns immediately; its KV cache blocks are freed after the current step. Pieces generated
     * before can still be taken.
     */
    void cancel();

    /** {@return why the generation has ended; empty while the generation runs} */
    Optional<FinishReason> finishReason();

    /** {@return why the generation failed, if the reason is {@link FinishReason#ERROR}} */
    Optional<Throwable> failure();

    int promptTokens();

    /**
     * {@return the number of prompt tokens that were found in the prefix cache, and not computed; 0
     * until the request runs}
     */
    int cachedTokens();

    /**
     * {@return the tokens of the prompt with their log probabilities, in pieces with empty texts,
     * if the request {@linkplain GenerationRequest.Builder#optPromptLogProbabilities asks for
     * them}} The first token has no log probability, but NaN. Empty until the first piece is
     * generated.
     */
    default List<GeneratedPiece> promptPieces() {
        return List.of();
    }

    /** {@return the number of tokens generated so far, taken or not, including a stop token} */
    int generatedTokens();

    /**
     * Sets the listener for new pieces and the end, for callers that must not block. It runs on the
     * generator's thread, must not block, and its exceptions are logged. If there is a piece or the
     * generation has ended, it also runs once on the calling thread, before this method returns.
     */
    void onProgress(Runnable listener);
}
