// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeoutException;
import org.djlx.fusedops.llm.Generation;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.TextGenerator;

/**
 * Measures decode steps as seen by callers of a generator: the time between two pieces. Prompts are
 * random tokens.
 *
 * @param generator the measured generator
 * @param vocabulary the size of the vocabulary
 */
record StepBench(TextGenerator generator, int vocabulary) {

    private static final Duration PATIENCE = Duration.ofMinutes(5);
    private static final int SEED = 1;
    private static final int FIRST = 8; // uncounted steps of a run

    /** Sampling parameters. */
    static final double TEMPERATURE = 0.8;

    static final int TOP_K = 40;
    static final double TOP_P = 0.95;

    private static final int WARM_UP = 3; // uncounted runs, while the JVM compiles

    /**
     * The steps in which all requests got a token, without the first steps.
     *
     * @param steps the number of steps
     * @param tokensPerSecond the tokens of all requests during these steps
     */
    record Steps(int steps, double medianMicros, double p90Micros, double tokensPerSecond) {}

    /** The arrival times of a generation's tokens. Also called by the generator's thread. */
    private static final class Times {

        private final long start = System.nanoTime();
        private final Generation generation;
        private final List<Long> nanos = new ArrayList<>();

        Times(TextGenerator generator, GenerationRequest request) {
            generation = generator.submit(request);
            generation.onProgress(this::add);
        }

        private synchronized void add() {
            long now = System.nanoTime();
            while (nanos.size() < generation.generatedTokens()) {
                nanos.add(now);
            }
            notifyAll();
        }

        void await(int tokens) throws InterruptedException, TimeoutException {
            generation.await(PATIENCE);
            synchronized (this) {
                while (nanos.size() < tokens) { // The call for the last token may follow the end.
                    wait();
                }
            }
        }
    }

    /**
     * Measures decode steps.
     *
     * @param batch the number of requests, submitted together
     * @param newTokens the tokens generated for each request
     * @param sampled whether tokens are sampled; otherwise greedy
     * @throws IllegalStateException if there was no step in which all requests got a token
     */
    Steps steps(int batch, int promptTokens, int newTokens, boolean sampled)
            throws InterruptedException, TimeoutException {
        for (int i = 0; i < WARM_UP; i++) {
            run(batch, promptTokens, newTokens, sampled);
        }
        List<Times> all = run(batch, promptTokens, newTokens, sampled);
        // From the last prefill on, all requests get tokens, until the first request ends.
        Times last = all.stream().max(Comparator.comparing(times -> times.nanos.get(0))).get();
        long end =
                all.stream().mapToLong(times -> times.nanos.get(newTokens - 1)).min().getAsLong();
        List<Long> ends = last.nanos.stream().filter(nanos -> nanos <= end).skip(FIRST).toList();
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
        return new Steps(
                micros.length,
                Stats.median(micros),
                Stats.quantile(micros, 0.9),
                1e6 * batch * micros.length / Arrays.stream(micros).sum());
    }

    /**
     * Measures the time to the first token of a single prompt.
     *
     * @param runs the number of measurements; one uncounted run comes first
     * @return the median in microseconds
     */
    double firstTokenMicros(int promptTokens, int runs)
            throws InterruptedException, TimeoutException {
        double[] micros = new double[runs];
        for (int i = -1; i < runs; i++) {
            Times times = run(1, promptTokens, 1, false).get(0);
            if (i >= 0) {
                micros[i] = (times.nanos.get(0) - times.start) / 1e3;
            }
        }
        return Stats.median(micros);
    }

    private List<Times> run(int batch, int promptTokens, int newTokens, boolean sampled)
            throws InterruptedException, TimeoutException {
        Random random = new Random(SEED);
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < batch; i++) {
            GenerationRequest.Builder request =
                    GenerationRequest.builder()
                            .setPromptTokens(random.ints(promptTokens, 0, vocabulary).toArray())
                            .optMaxNewTokens(newTokens)
                            .optIgnoreEndOfText(true);
            if (sampled) {
                request.optTemperature(TEMPERATURE).optTopK(TOP_K).optTopP(TOP_P).optSeed(i);
            }
            requests.add(request.build());
        }
        List<Times> all = new ArrayList<>();
        for (GenerationRequest request : requests) {
            all.add(new Times(generator, request));
        }
        for (Times times : all) {
            times.await(newTokens);
        }
        return all;
    }
}
