// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.RejectedExecutionException;

/**
 * The texts that wait for an {@link EmbeddingEngine}. A rank takes a batch of texts of any callers;
 * waiting tokens are shared equally between ranks. The texts of a call are sorted by length, so
 * that a batch has few different lengths.
 */
final class EmbeddingQueue {

    private static final Comparator<Text> BY_LENGTH =
            Comparator.comparingInt(text -> text.tokens.length);

    private final Queue<Text> waiting = new ArrayDeque<>(); // guarded by this
    private final int ranks;
    private final int batchTokens;
    private final int maxQueued;
    private long waitingTokens; // guarded by this
    private IllegalStateException end; // why the queue is closed; null while it is open

    record Text(Call call, int index, int[] tokens) {}

    /** The texts of one caller, which waits for their vectors. */
    static final class Call {

        private final float[][] vectors;
        private int missing;
        private Throwable failure;

        private Call(int count) {
            vectors = new float[count][];
            missing = count;
        }

        synchronized void complete(int index, float[] vector) {
            vectors[index] = vector;
            missing--;
            notifyAll();
        }

        synchronized void fail(Throwable cause) {
            failure = cause;
            notifyAll();
        }

        private synchronized float[][] await() throws InterruptedException {
            while (missing > 0 && failure == null) {
                wait();
            }
            if (failure != null) {
                throw new IllegalStateException(
                        "the embedding model has failed: " + failure.getMessage(), failure);
            }
            return vectors;
        }
    }

    /** A batch has at most {@code batchTokens} tokens, or a single text. */
    EmbeddingQueue(int ranks, int batchTokens, int maxQueued) {
        this.ranks = ranks;
        this.batchTokens = batchTokens;
        this.maxQueued = maxQueued;
    }

    float[][] embed(List<int[]> texts) {
        Call call = new Call(texts.size());
        List<Text> sorted = new ArrayList<>();
        for (int i = 0; i < texts.size(); i++) {
            sorted.add(new Text(call, i, texts.get(i)));
        }
        sorted.sort(BY_LENGTH.reversed());
        synchronized (this) {
            if (end != null) {
                throw end;
            }
            // A single call may be larger than the queue: its caller has it in memory anyway.
            if (!waiting.isEmpty() && waiting.size() + texts.size() > maxQueued) {
                throw new RejectedExecutionException(
                        "%d texts wait, and maxQueued is %d".formatted(waiting.size(), maxQueued));
            }
            waiting.addAll(sorted);
            waitingTokens += tokens(sorted);
            notifyAll();
        }
        try {
            return call.await();
        } catch (IllegalStateException e) {
            remove(call); // Its other texts are not needed.
            throw e;
        } catch (InterruptedException e) {
            remove(call);
            Thread.currentThread().interrupt();
            throw new CancellationException("interrupted while texts were embedded");
        }
    }

    private static long tokens(List<Text> texts) {
        return texts.stream().mapToLong(text -> text.tokens.length).sum();
    }

    private synchronized void remove(Call call) {
        waiting.removeIf(text -> text.call == call);
        waitingTokens = tokens(List.copyOf(waiting));
    }

    /** Waits for texts, and takes a batch, sorted by length; empty after {@link #close}. */
    synchronized List<Text> take() throws InterruptedException {
        while (waiting.isEmpty() && end == null) {
            wait();
        }
        // An equal part for each rank.
        long budget = Math.min(batchTokens, (waitingTokens + ranks - 1) / ranks);
        List<Text> batch = new ArrayList<>();
        long taken = 0;
        while (!waiting.isEmpty()
                && (batch.isEmpty() || taken + waiting.element().tokens.length <= budget)) {
            Text text = waiting.remove();
            batch.add(text);
            taken += text.tokens.length;
        }
        waitingTokens -= taken;
        batch.sort(BY_LENGTH);
        return batch;
    }

    /** Fails the calls that wait, and all later ones. */
    synchronized void close(String reason) {
        if (end == null) {
            end = new IllegalStateException(reason);
        }
        waiting.forEach(text -> text.call.fail(end));
        waiting.clear();
        waitingTokens = 0;
        notifyAll();
    }
}
