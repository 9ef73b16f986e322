// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.engine.EngineException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The queue of pieces between the engine thread and the caller of a generation. */
class PieceQueue implements Generation {

    private static final Logger LOG = LoggerFactory.getLogger(PieceQueue.class);

    // Longer timeouts are cut to this value, which fits a long in nanoseconds.
    private static final Duration MAX_TIMEOUT = Duration.ofDays(36_500);

    private final int promptTokens;
    private final Runnable onCancel;

    // Guarded by this.
    private final Deque<GeneratedPiece> pieces = new ArrayDeque<>();
    private int generated;
    private int cachedTokens;
    private List<GeneratedPiece> promptPieces = List.of();
    private volatile FinishReason reason; // read without the lock, too
    private Throwable failure;
    private Runnable listener;

    PieceQueue(int promptTokens, Runnable onCancel) {
        this.promptTokens = promptTokens;
        this.onCancel = onCancel;
    }

    /**
     * Adds a piece; {@code end} is the finish reason with the last piece, otherwise null. No-op if
     * the generation has ended.
     */
    void add(GeneratedPiece piece, FinishReason end) {
        Runnable toNotify;
        synchronized (this) {
            if (reason != null) {
                return;
            }
            pieces.add(piece);
            generated++;
            reason = end;
            notifyAll();
            toNotify = listener;
        }
        run(toNotify);
    }

    synchronized void setCachedTokens(int tokens) {
        cachedTokens = tokens;
    }

    /** Sets the log probabilities of the prompt, before the first piece. */
    synchronized void setPromptPieces(List<GeneratedPiece> pieces) {
        promptPieces = List.copyOf(pieces);
    }

    /** Ends the generation. Returns false if it has ended already. */
    boolean end(FinishReason end, Throwable cause) {
        Runnable toNotify;
        synchronized (this) {
            if (reason != null) {
                return false;
            }
            failure = cause;
            reason = end;
            notifyAll();
            toNotify = listener;
        }
        run(toNotify);
        return true;
    }

    private static void run(Runnable listener) {
        if (listener != null) {
            try {
                listener.run();
            } catch (RuntimeException | Error e) { // The engine thread continues.
                LOG.warn("the progress listener of a generation has failed", e);
            }
        }
    }

    @Override
    public synchronized GeneratedPiece next(Duration timeout)
            throws TimeoutException, InterruptedException {
        await(timeout, () -> !pieces.isEmpty() || reason != null);
        return poll().orElse(null);
    }

    @Override
    public synchronized Optional<GeneratedPiece> poll() {
        if (pieces.isEmpty()) {
            checkFailure();
        }
        return Optional.ofNullable(pieces.poll());
    }

    @Override
    public synchronized List<GeneratedPiece> await(Duration timeout)
            throws TimeoutException, InterruptedException {
        await(timeout, () -> reason != null);
        checkFailure();
        List<GeneratedPiece> left = new ArrayList<>(pieces);
        pieces.clear();
        return left;
    }

    private void await(Duration timeout, BooleanSupplier condition)
            throws TimeoutException, InterruptedException {
        long start = System.nanoTime();
        long nanos = (timeout.compareTo(MAX_TIMEOUT) < 0 ? timeout : MAX_TIMEOUT).toNanos();
        while (!condition.getAsBoolean()) {
            long left = nanos - (System.nanoTime() - start);
            if (left <= 0) {
                throw new TimeoutException(
                        String.format(
                                "no progress within %s s, after %d generated tokens; the"
                                        + " generation continues",
                                nanos / 1e9, generated));
            }
            TimeUnit.NANOSECONDS.timedWait(this, left);
        }
    }

    private void checkFailure() {
        if (failure != null) {
            throw new EngineException(
                    "the generation failed after " + generated + " tokens: " + failure.getMessage(),
                    failure);
        }
    }

    @Override
    public void cancel() {
        if (end(FinishReason.CANCELLED, null)) {
            onCancel.run();
        }
    }

    @Override
    public Optional<FinishReason> finishReason() {
        return Optional.ofNullable(reason);
    }

    @Override
    public synchronized Optional<Throwable> failure() {
        return Optional.ofNullable(failure);
    }

    @Override
    public int promptTokens() {
        return promptTokens;
    }

    @Override
    public synchronized int cachedTokens() {
        return cachedTokens;
    }

    @Override
    public synchronized List<GeneratedPiece> promptPieces() {
        return promptPieces;
    }

    @Override
    public synchronized int generatedTokens() {
        return generated;
    }

    @Override
    public void onProgress(Runnable listener) {
        boolean now;
        synchronized (this) {
            this.listener = listener;
            now = !pieces.isEmpty() || reason != null;
        }
        if (now && listener != null) {
            listener.run();
        }
    }
}
