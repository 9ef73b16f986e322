// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;

/**
 * The answer to one request, formatted while it is generated. One thread calls {@link #poll}; the
 * other methods are thread-safe.
 */
public final class TextAnswer {

    private final AnswerFormat format;
    private final List<Generation> generations;
    private final List<List<GeneratedPiece>> pieces = new ArrayList<>(); // used unless streamed
    private final List<Integer> open = new ArrayList<>(); // running choices; next to poll first
    private boolean begun;

    TextAnswer(AnswerFormat format, List<Generation> generations) {
        this.format = format;
        this.generations = generations;
        for (int i = 0; i < generations.size(); i++) {
            pieces.add(new ArrayList<>());
            open.add(i);
        }
    }

    /**
     * Takes the next piece of any generation, round-robin, and formats it. Does not block.
     *
     * @return the text to send, which may be empty; {@link Optional#empty} if there is nothing yet,
     *     or if the answer is {@linkplain #isComplete complete}
     * @throws CancellationException if a generation was cancelled
     * @throws ai.djl.engine.EngineException if a generation has failed
     */
    public Optional<String> poll() {
        for (int i = 0; i < open.size(); i++) {
            int choice = open.remove(0);
            open.add(choice);
            Generation generation = generations.get(choice);
            boolean ended = generation.finishReason().isPresent(); // must precede poll()
            Optional<GeneratedPiece> piece = generation.poll();
            if (piece.isPresent() || ended) {
                return Optional.of(format(choice, piece.orElse(null)));
            }
        }
        return Optional.empty();
    }

    /** {@return whether {@link #poll} has returned the complete answer} */
    public boolean isComplete() {
        return open.isEmpty();
    }

    /** {@return the generation of each choice} Its pieces belong to this answer. */
    public List<Generation> generations() {
        return generations;
    }

    /** Formats a piece, or the end of a choice if it is null. */
    private String format(int choice, GeneratedPiece piece) {
        String text = begun || !format.isStreamed() ? "" : format.begin();
        begun = true;
        Generation generation = generations.get(choice);
        if (piece != null) {
            if (format.isStreamed()) {
                return text + format.piece(choice, piece, generation);
            }
            pieces.get(choice).add(piece);
            return text;
        }
        if (generation.finishReason().orElseThrow() == FinishReason.CANCELLED) {
            throw new CancellationException("the generation was cancelled");
        }
        open.remove(Integer.valueOf(choice));
        if (format.isStreamed()) {
            text += format.end(choice, generation);
            return open.isEmpty() ? text + format.end(generations) : text;
        }
        return open.isEmpty() ? format.whole(pieces, generations) : text;
    }

    /** Cancels all generations. Returns immediately. */
    public void cancel() {
        generations.forEach(Generation::cancel);
    }

    /**
     * Sets a listener that runs when {@link #poll} may return text; see {@link
     * Generation#onProgress}.
     */
    public void onProgress(Runnable listener) {
        generations.forEach(generation -> generation.onProgress(listener));
    }
}
