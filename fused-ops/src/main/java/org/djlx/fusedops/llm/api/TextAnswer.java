/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.api;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.TimeoutException;
import org.djlx.fusedops.llm.FinishReason;
import org.djlx.fusedops.llm.GeneratedPiece;
import org.djlx.fusedops.llm.Generation;

/**
 * The answer to one request as it is generated: what there is of all its generations, in words. One
 * thread takes these; the other methods may be called by any thread.
 */
public final class TextAnswer {

    private final AnswerFormat format;
    private final List<Generation> generations;
    private final List<List<GeneratedPiece>> pieces = new ArrayList<>(); // if it is not streamed
    private final List<Integer> open = new ArrayList<>(); // those that go on, the next one first
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
     * Takes a piece that is there, of each generation in turn, without waiting for one.
     *
     * @return what to send, which may be empty; null if all has been returned
     * @throws TimeoutException if no piece is there yet
     * @throws InterruptedException if the calling thread is interrupted
     * @throws CancellationException if a generation was cancelled
     * @throws ai.djl.engine.EngineException if a generation has failed
     */
    public String next() throws TimeoutException, InterruptedException {
        TimeoutException none = null;
        for (int i = 0; i < open.size(); i++) {
            int choice = open.remove(0);
            open.add(choice);
            try {
                return take(choice, generations.get(choice).next(Duration.ZERO));
            } catch (TimeoutException e) {
                none = e; // There may be one of the next generation.
            }
        }
        if (none != null) {
            throw none;
        }
        return null;
    }

    private String take(int choice, GeneratedPiece piece) {
        String text = begun || !format.isStreamed() ? "" : format.begin();
        begun = true;
        if (piece != null) {
            if (format.isStreamed()) {
                return text + format.piece(choice, piece);
            }
            pieces.get(choice).add(piece);
            return text;
        }
        Generation generation = generations.get(choice);
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

    /** Cancels all generations. */
    public void cancel() {
        generations.forEach(Generation::cancel);
    }

    /**
     * Runs code whenever there may be something new.
     *
     * @param listener is run as {@link Generation#onProgress} says
     */
    public void onProgress(Runnable listener) {
        generations.forEach(generation -> generation.onProgress(listener));
    }
}
