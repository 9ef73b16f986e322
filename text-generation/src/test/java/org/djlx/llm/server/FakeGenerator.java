// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import ai.djl.engine.EngineException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.llm.text.TextTokenizer;

/**
 * A generator whose tokens are characters, and which says the end of the prompt, its last ten
 * characters, again and again. A thread gives every running request a piece in turn. A prompt with
 * FAIL fails after two pieces, one with HANG has one piece and no more until it is cancelled, and
 * for one with HUGE memory runs out. A text with BLOCK is encoded when {@link #unblock} is called.
 * A generator that has answers gives those instead, up to the first stop string.
 */
final class FakeGenerator implements TextGenerator, TextTokenizer {

    static final int MAX_RUNNING = 100;
    private static final int PERIOD = 10;

    private final Semaphore blocked = new Semaphore(0);
    private final CountDownLatch unblocked = new CountDownLatch(1);
    private final List<FakeGeneration> running = new CopyOnWriteArrayList<>();
    private final Thread thread = new Thread(this::generate, "fake-generator");
    private long finished;
    private long cancelled;
    private long failed;
    private volatile boolean closed;
    private volatile String unavailable;

    private final int maxLength;
    private final Function<GenerationRequest, String> answers; // null for the end of the prompt

    FakeGenerator() {
        this(300_000, null);
    }

    FakeGenerator(int maxLength, Function<GenerationRequest, String> answers) {
        this.maxLength = maxLength;
        this.answers = answers;
        thread.start();
    }

    /** Returns what a prompt is answered with. */
    static String expected(String prompt, int tokens) {
        StringBuilder answer = new StringBuilder();
        for (int i = 0; i < tokens; i++) {
            answer.append(expectedAt(prompt, i));
        }
        return answer.toString();
    }

    private static char expectedAt(String prompt, int index) {
        int period = Math.min(prompt.length(), PERIOD);
        return prompt.charAt(prompt.length() - period + index % period);
    }

    void setUnavailable(String cause) {
        unavailable = cause;
    }

    private final class FakeGeneration implements Generation {

        private final String prompt;
        private final int tokens;
        private final String[] answer; // words and what is between; null for the end of the prompt
        private final LinkedBlockingQueue<Optional<GeneratedPiece>> pieces =
                new LinkedBlockingQueue<>();
        private Runnable listener;
        private int generated;
        private FinishReason reason;
        private boolean taken;

        private FakeGeneration(String prompt, GenerationRequest request) {
            this.prompt = prompt;
            tokens = request.maxTokens();
            String text = answers == null ? null : answers.apply(request);
            for (String stop : request.stopStrings()) {
                text = text == null ? null : text.split(Pattern.quote(stop), 2)[0];
            }
            answer = text == null ? null : text.split("(?<=\\w)(?=\\W)|(?<=\\W)(?=\\w)");
        }

        /** Generates a piece; tells whether it is over. */
        private synchronized boolean step() {
            if (reason == null && generated == 2 && prompt.contains("FAIL")) {
                end(FinishReason.ERROR);
            } else if (reason == null && !hangs()) {
                String next =
                        answer == null
                                ? String.valueOf(expectedAt(prompt, generated))
                                : answer[generated];
                pieces.add(Optional.of(new GeneratedPiece(next.charAt(0), next, -1)));
                if (++generated == tokens) {
                    end(FinishReason.LENGTH);
                } else if (answer != null && generated == answer.length) {
                    end(FinishReason.STOP);
                } else {
                    tell();
                }
            }
            return reason != null;
        }

        private synchronized boolean waits() {
            return reason == null && hangs();
        }

        private boolean hangs() {
            return generated == 1 && prompt.contains("HANG");
        }

        private void end(FinishReason why) {
            reason = why;
            pieces.add(Optional.empty());
            tell();
        }

        private void tell() {
            if (listener != null) {
                listener.run();
            }
        }

        @Override
        public GeneratedPiece next(Duration timeout) throws TimeoutException, InterruptedException {
            if (taken) {
                return ended();
            }
            Optional<GeneratedPiece> piece = pieces.poll(timeout.toMillis(), TimeUnit.MILLISECONDS);
            if (piece == null) {
                throw new TimeoutException();
            }
            taken = piece.isEmpty();
            return taken ? ended() : piece.get();
        }

        @Override
        public Optional<GeneratedPiece> poll() {
            Optional<GeneratedPiece> piece = taken ? Optional.empty() : pieces.poll();
            if (piece == null) {
                return Optional.empty();
            }
            taken = piece.isEmpty();
            return taken ? Optional.ofNullable(ended()) : piece;
        }

        private synchronized GeneratedPiece ended() {
            if (reason == FinishReason.ERROR) {
                throw prompt.contains("FAIL ODDLY")
                        ? new IllegalArgumentException("made up")
                        : new EngineException("rank 1 has failed\nat native code");
            }
            return null;
        }

        @Override
        public List<GeneratedPiece> await(Duration timeout) throws InterruptedException {
            List<GeneratedPiece> all = new ArrayList<>();
            try {
                for (GeneratedPiece p = next(timeout); p != null; p = next(timeout)) {
                    all.add(p);
                }
            } catch (TimeoutException e) {
                throw new IllegalStateException(e);
            }
            return all;
        }

        @Override
        public void cancel() {
            synchronized (this) {
                if (reason == null) {
                    end(FinishReason.CANCELLED);
                }
            }
            goOn();
        }

        @Override
        public synchronized Optional<FinishReason> finishReason() {
            return Optional.ofNullable(reason);
        }

        @Override
        public Optional<Throwable> failure() {
            return Optional.empty();
        }

        @Override
        public int promptTokens() {
            return prompt.length();
        }

        @Override
        public int cachedTokens() {
            return 0;
        }

        @Override
        public synchronized int generatedTokens() {
            return generated;
        }

        @Override
        public synchronized void onProgress(Runnable code) {
            listener = code;
            if (!pieces.isEmpty()) {
                code.run();
            }
        }
    }

    private void generate() {
        while (!closed) {
            for (FakeGeneration generation : running) {
                if (generation.step()) {
                    running.remove(generation);
                    count(generation.finishReason().orElseThrow());
                }
            }
            pause();
        }
    }

    private synchronized void goOn() {
        notifyAll();
    }

    private synchronized void count(FinishReason reason) {
        switch (reason) {
            case ERROR -> failed++;
            case CANCELLED -> cancelled++;
            default -> finished++;
        }
        notifyAll();
    }

    private synchronized void pause() {
        try {
            while (!closed && running.stream().allMatch(FakeGeneration::waits)) {
                wait();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Waits until so many requests have come to their end. */
    synchronized void awaitFinished(long count) throws InterruptedException {
        while (finished < count) {
            wait();
        }
    }

    /** Waits until so many requests were cancelled. */
    synchronized void awaitCancelled(long count) throws InterruptedException {
        while (cancelled < count) {
            wait();
        }
    }

    @Override
    public synchronized List<Generation> submitAll(List<GenerationRequest> requests) {
        List<FakeGeneration> all = requests.stream().map(this::generation).toList();
        if (running.size() + all.size() > MAX_RUNNING) {
            throw new RejectedExecutionException("too many requests");
        }
        running.addAll(all);
        notifyAll();
        return List.copyOf(all);
    }

    private FakeGeneration generation(GenerationRequest request) {
        String prompt = request.prompt().orElseGet(() -> decode(request.promptTokens().get()));
        if (prompt.contains("HUGE")) {
            throw new OutOfMemoryError("made up");
        }
        if (prompt.length() + request.maxTokens() > maxLength()) {
            throw new ContextLengthException(prompt.length(), request.maxTokens(), maxLength());
        }
        return new FakeGeneration(prompt, request);
    }

    @Override
    public int maxLength() {
        return maxLength;
    }

    @Override
    public Optional<TextTokenizer> tokenizer() {
        return Optional.of(this);
    }

    @Override
    public synchronized GeneratorStatistics statistics() {
        return new GeneratorStatistics(
                running.size(), 0, 3, 10, 4096, 7, 4, 2, finished, cancelled, failed, 5, 6, 0);
    }

    @Override
    public Optional<String> unavailabilityCause() {
        return Optional.ofNullable(unavailable);
    }

    /** Waits until so many texts with BLOCK are being encoded. */
    void awaitBlocked(int count) throws InterruptedException {
        blocked.acquire(count);
    }

    /** Lets all texts with BLOCK be encoded. */
    void unblock() {
        unblocked.countDown();
    }

    @Override
    public int[] encode(String text, boolean specialTokens) {
        if (text.contains("BLOCK")) {
            blocked.release();
            try {
                unblocked.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
        return text.chars().toArray();
    }

    @Override
    public Set<String> specialTokens() {
        return Set.of();
    }

    @Override
    public String decode(int[] tokens) {
        return new String(tokens, 0, tokens.length);
    }

    @Override
    public void close() {
        closed = true;
        synchronized (this) {
            notifyAll();
        }
        try {
            thread.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
