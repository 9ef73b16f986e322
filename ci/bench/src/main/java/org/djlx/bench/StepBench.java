// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;

/**
 * Measures decode steps as seen by callers of a generator: the time between two pieces. Prompts are
 * random tokens.
 */
record StepBench(Program program, int vocabulary) {

    private static final Duration PATIENCE = Duration.ofMinutes(5);
    private static final int SEED = 1;
    private static final int FIRST = 8; // uncounted steps of a run

    static final double TEMPERATURE = 0.8;

    static final int TOP_K = 40;
    static final double TOP_P = 0.95;

    private static final int WARM_UP = 3; // uncounted runs, while the JVM compiles

    /** Generates text for prompts that it gets at the same time. */
    interface Program {

        /** {@code sampled}: otherwise greedy. */
        Answers answer(List<int[]> prompts, int newTokens, boolean sampled)
                throws InterruptedException, TimeoutException;
    }

    /** The tokens of each answer, and their arrival times in nanoseconds since the call. */
    record Answers(List<List<Integer>> tokens, List<List<Long>> nanos) {}

    /**
     * The steps in which all requests got a token, without the first steps; the tokens are those of
     * all requests.
     */
    record Steps(
            int steps,
            double fastestMicros,
            double medianMicros,
            double p90Micros,
            double tokensPerSecond) {

        /** Returns the statistics of steps, in microseconds, of a number of requests. */
        static Steps of(int batch, double... micros) {
            return new Steps(
                    micros.length,
                    Arrays.stream(micros).min().getAsDouble(),
                    Stats.median(micros),
                    Stats.quantile(micros, 0.9),
                    1e6 * batch * micros.length / Arrays.stream(micros).sum());
        }
    }

    /** The arrival times of a generation's tokens. Also called by the generator's thread. */
    private static final class Times {

        private final long start;
        private final Generation generation;
        private final List<Long> nanos = new ArrayList<>();

        Times(TextGenerator generator, GenerationRequest request, long start) {
            this.start = start;
            generation = generator.submit(request);
            generation.onProgress(this::add);
        }

        private synchronized void add() {
            long now = System.nanoTime() - start;
            while (nanos.size() < generation.generatedTokens()) {
                nanos.add(now);
            }
            notifyAll();
        }

        /** Waits for the end; returns the tokens. */
        List<Integer> await() throws InterruptedException, TimeoutException {
            List<GeneratedPiece> pieces = generation.await(PATIENCE);
            synchronized (this) {
                while (nanos.size() < pieces.size()) { // The last call may follow the end.
                    wait();
                }
            }
            return pieces.stream().map(GeneratedPiece::token).toList();
        }
    }

    /** Requests use the adapters in turn; none if there are no adapters. */
    StepBench(TextGenerator generator, int vocabulary, List<String> adapters) {
        this(
                (prompts, newTokens, sampled) ->
                        answer(generator, prompts, newTokens, sampled, adapters),
                vocabulary);
    }

    /**
     * Measures decode steps, after uncounted runs, of {@code batch} requests that are submitted
     * together. Throws an IllegalStateException if there was no step in which all requests got a
     * token.
     */
    Steps steps(int batch, int promptTokens, int newTokens, boolean sampled)
            throws InterruptedException, TimeoutException {
        for (int i = 0; i < WARM_UP; i++) {
            run(batch, promptTokens, newTokens, sampled);
        }
        return Steps.of(batch, micros(batch, promptTokens, newTokens, sampled));
    }

    /** Measures the decode steps of one run, in microseconds, as {@link #steps} does. */
    double[] micros(int batch, int promptTokens, int newTokens, boolean sampled)
            throws InterruptedException, TimeoutException {
        List<List<Long>> all = run(batch, promptTokens, newTokens, sampled).nanos;
        // From the last prefill on, all requests get tokens, until the first request ends.
        List<Long> last = all.stream().max(Comparator.comparing(nanos -> nanos.get(0))).get();
        long end = all.stream().mapToLong(nanos -> nanos.get(newTokens - 1)).min().getAsLong();
        List<Long> ends = last.stream().filter(nanos -> nanos <= end).skip(FIRST).toList();
        if (ends.size() < 2) {
            throw new IllegalStateException(
                    String.format(
                            "fewer than 2 measured steps gave all %d requests a token: generate"
                                + " more than %d tokens per request, or make the KV cache larger"
                                + " than %d tokens per request",
                            batch, newTokens, promptTokens + newTokens));
        }
        double[] micros = new double[ends.size() - 1];
        for (int i = 0; i < micros.length; i++) {
            micros[i] = (ends.get(i + 1) - ends.get(i)) / 1e3;
        }
        return micros;
    }

    /** Returns the median time to the first token of a single prompt, after an uncounted run. */
    double firstTokenMicros(int promptTokens, int runs)
            throws InterruptedException, TimeoutException {
        firstTokenMicros(promptTokens);
        double[] micros = new double[runs];
        for (int i = 0; i < runs; i++) {
            micros[i] = firstTokenMicros(promptTokens);
        }
        return Stats.median(micros);
    }

    double firstTokenMicros(int promptTokens) throws InterruptedException, TimeoutException {
        return run(1, promptTokens, 1, false).nanos.get(0).get(0) / 1e3;
    }

    Answers run(int batch, int promptTokens, int newTokens, boolean sampled)
            throws InterruptedException, TimeoutException {
        Random random = new Random(SEED);
        List<int[]> prompts =
                Stream.generate(() -> random.ints(promptTokens, 0, vocabulary).toArray())
                        .limit(batch)
                        .toList();
        return program.answer(prompts, newTokens, sampled);
    }

    private static Answers answer(
            TextGenerator generator,
            List<int[]> prompts,
            int newTokens,
            boolean sampled,
            List<String> adapters)
            throws InterruptedException, TimeoutException {
        List<GenerationRequest> requests = new ArrayList<>();
        for (int[] prompt : prompts) {
            GenerationRequest.Builder request =
                    GenerationRequest.builder()
                            .setPromptTokens(prompt)
                            .optMaxTokens(newTokens)
                            .optIgnoreEndOfText(true);
            if (!adapters.isEmpty()) {
                request.optAdapter(adapters.get(requests.size() % adapters.size()));
            }
            if (sampled) {
                request.optTemperature(TEMPERATURE)
                        .optTopK(TOP_K)
                        .optTopP(TOP_P)
                        .optSeed(requests.size());
            }
            requests.add(request.build());
        }
        long start = System.nanoTime();
        List<Times> all = new ArrayList<>();
        for (GenerationRequest request : requests) {
            all.add(new Times(generator, request, start));
        }
        List<List<Integer>> tokens = new ArrayList<>();
        for (Times times : all) {
            tokens.add(times.await());
        }
        return new Answers(tokens, all.stream().map(times -> times.nanos).toList());
    }
}
