// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.djlx.llm.text.AnswerParts;
import org.djlx.llm.text.AnswerStream.Part;
import org.djlx.llm.text.ToolCall;

/**
 * A request that a {@link ChatModel} has accepted, and the parts of its answer. Only one thread may
 * take parts; {@link #cancel} is thread-safe.
 */
public final class ChatGeneration {

    private static final Duration FOREVER = Duration.ofDays(10_000);

    private final Generation generation;
    private final AnswerParts parts;
    private final List<Part> taken = new ArrayList<>();
    private boolean ended;

    ChatGeneration(Generation generation, AnswerParts parts) {
        this.generation = generation;
        this.parts = parts;
    }

    /**
     * Takes the next parts: reasoning, content, or parts of calls. Blocks until a token is
     * generated or the generation has ended.
     *
     * @return the parts; empty if the token may begin a marker, so that its part is not known yet;
     *     null after the last part
     * @throws TimeoutException if the time is up; the generation continues, as after an {@link
     *     InterruptedException}
     * @throws ai.djl.engine.EngineException if the generation has failed
     */
    public List<Part> next(Duration timeout) throws TimeoutException, InterruptedException {
        if (ended) {
            return null;
        }
        GeneratedPiece piece = generation.next(timeout);
        ended = piece == null;
        List<Part> next = ended ? parts.end() : parts.add(piece.token(), piece.text());
        taken.addAll(next);
        return next;
    }

    /** As {@link #next(Duration)}, without a limit. */
    public List<Part> next() throws InterruptedException {
        try {
            return next(FOREVER);
        } catch (TimeoutException e) {
            throw new IllegalStateException("no token within " + FOREVER, e);
        }
    }

    /**
     * {@return the whole answer}
     *
     * @throws IllegalStateException if {@link #next} has not yet returned null
     * @throws CancellationException if the generation was cancelled
     */
    public ChatAnswer answer() {
        if (!ended) {
            throw new IllegalStateException("the answer is not complete: take all its parts first");
        }
        FinishReason reason = generation.finishReason().orElseThrow();
        if (reason == FinishReason.CANCELLED) {
            throw new CancellationException("the answer was cancelled");
        }
        Map<Integer, ToolCall> calls = new LinkedHashMap<>();
        for (Part part : taken) {
            if (part.call() >= 0) {
                ToolCall begun = new ToolCall(part.id(), part.name(), part.arguments());
                calls.merge(part.call(), begun, ChatGeneration::join);
            }
        }
        return new ChatAnswer(
                join(Part::content),
                join(Part::reasoning),
                List.copyOf(calls.values()),
                reason,
                generation.promptTokens(),
                generation.generatedTokens());
    }

    private static ToolCall join(ToolCall begun, ToolCall more) {
        return new ToolCall(begun.id(), begun.name(), begun.arguments() + more.arguments());
    }

    private String join(Function<Part, String> text) {
        return taken.stream().map(text).collect(Collectors.joining());
    }

    /** Cancels the generation. No-op if it has ended. Returns immediately. */
    public void cancel() {
        generation.cancel();
    }
}
