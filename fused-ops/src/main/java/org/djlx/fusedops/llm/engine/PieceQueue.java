/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import ai.djl.engine.EngineException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.djlx.fusedops.llm.FinishReason;
import org.djlx.fusedops.llm.GeneratedPiece;
import org.djlx.fusedops.llm.Generation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What a generation's caller sees: pieces that wait, and the end. */
final class PieceQueue implements Generation {

    private static final Logger LOG = LoggerFactory.getLogger(PieceQueue.class);

    private static final Duration LONGEST = Duration.ofDays(36_500); // that fits nanoseconds

    private final int promptTokens;
    private final Runnable onCancel;

    // Guarded by this.
    private final Deque<GeneratedPiece> pieces = new ArrayDeque<>();
    private int generated;
    private FinishReason reason;
    private Throwable failure;
    private Runnable listener;

    /** Makes a queue; the code is run when the caller has cancelled. */
    PieceQueue(int promptTokens, Runnable onCancel) {
        this.promptTokens = promptTokens;
        this.onCancel = onCancel;
    }

    /** Adds a piece, unless it has ended; with a reason it ends then. */
    void add(GeneratedPiece piece, FinishReason end) {
        synchronized (this) {
            if (reason != null) {
                return;
            }
            pieces.add(piece);
            generated++;
            reason = end;
            notifyAll();
        }
        tell();
    }

    /** Ends it, unless it has ended. */
    boolean end(FinishReason end, Throwable cause) {
        synchronized (this) {
            if (reason != null) {
                return false;
            }
            reason = end;
            failure = cause;
            notifyAll();
        }
        tell();
        return true;
    }

    private void tell() {
        Runnable told;
        synchronized (this) {
            told = listener;
        }
        if (told != null) {
            try {
                told.run();
            } catch (RuntimeException | Error e) { // The generator's thread goes on for others.
                LOG.warn("a listener of a generation failed", e);
            }
        }
    }

    @Override
    public GeneratedPiece next(Duration timeout) throws TimeoutException, InterruptedException {
        synchronized (this) {
            await(timeout, () -> !pieces.isEmpty() || reason != null);
            if (pieces.isEmpty()) {
                checkFailure();
            }
            return pieces.poll();
        }
    }

    @Override
    public List<GeneratedPiece> await(Duration timeout)
            throws TimeoutException, InterruptedException {
        synchronized (this) {
            await(timeout, () -> reason != null);
            checkFailure();
            List<GeneratedPiece> left = new ArrayList<>(pieces);
            pieces.clear();
            return left;
        }
    }

    /** Tells who only looks, as for each piece of many generations, without its stack. */
    private static final class NothingYet extends TimeoutException {

        private static final long serialVersionUID = 1L;

        NothingYet() {
            super("nothing new is there yet");
        }

        @Override
        public synchronized Throwable fillInStackTrace() {
            return this;
        }
    }

    private interface Condition {
        boolean holds();
    }

    private void await(Duration timeout, Condition condition)
            throws TimeoutException, InterruptedException {
        long since = System.nanoTime();
        long patience = (timeout.compareTo(LONGEST) < 0 ? timeout : LONGEST).toNanos();
        while (!condition.holds()) {
            long left = patience - (System.nanoTime() - since);
            if (left <= 0) {
                if (patience <= 0) {
                    throw new NothingYet();
                }
                throw new TimeoutException(
                        String.format(
                                "%d tokens were generated, and nothing new came within %s",
                                generated, timeout));
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
    public synchronized Optional<FinishReason> finishReason() {
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
