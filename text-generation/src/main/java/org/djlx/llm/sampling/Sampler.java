// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.function.Supplier;

/**
 * Samples the next tokens of one sequence. A sampler gives the {@linkplain #next parameters} of
 * each token, which depend on the tokens before it; {@link #sample} then samples from the logits,
 * unless the device has done so. Not thread-safe.
 */
public final class Sampler {

    /**
     * A sampled token, its log probability before edits and temperature, and as many of the most
     * probable tokens as were asked for, the most probable first.
     */
    public record SampledToken(int token, float logProbability, List<TokenLogProbability> top) {

        public SampledToken(int token, float logProbability) {
            this(token, logProbability, List.of());
        }
    }

    private final SamplingOptions options;
    private final SplittableRandom random;
    private final Set<Integer> stopTokens;
    private final float repetitionPenalty;
    private final boolean penalizes;
    private Constraint constraint; // null if there is no grammar
    private int sampled; // how many parameters were given

    // The tokens whose logits change: their places in entries() of LogitEdits.
    private final Map<Integer, Integer> places = new HashMap<>();
    private int[] entries = {};

    /**
     * The repetition penalty applies to the tokens of the prompt, too; stop tokens end the
     * sequence.
     */
    public Sampler(SamplingOptions options, int[] prompt, Set<Integer> stopTokens) {
        this.options = options;
        this.stopTokens = stopTokens;
        // Clamped, because a float of 0 or infinity would make logits NaN.
        double requested = options.repetitionPenalty();
        repetitionPenalty =
                (float) Math.max(Float.MIN_NORMAL, Math.min(Float.MAX_VALUE, requested));
        random =
                options.seed().isPresent()
                        ? new SplittableRandom(options.seed().getAsLong())
                        : new SplittableRandom();
        penalizes =
                repetitionPenalty != 1
                        || options.frequencyPenalty() != 0
                        || options.presencePenalty() != 0;
        options.logitBias()
                .forEach(
                        (token, bias) -> set(token, 2, Float.floatToRawIntBits(bias.floatValue())));
        if (options.minTokens() > 0) {
            stopTokens.forEach(this::place);
        }
        if (repetitionPenalty != 1) {
            for (int token : prompt) {
                set(token, 1, LogitEdits.IN_PROMPT);
            }
        }
    }

    /** Samples only tokens that follow a grammar, whose state this sampler advances. */
    public void follow(Constraint constraint) {
        this.constraint = constraint;
    }

    /** {@return whether the tokens follow a grammar: each depends on the one before it} */
    public boolean hasGrammar() {
        return constraint != null;
    }

    /** {@return whether the tokens are a complete text of the grammar, which nothing can follow} */
    public boolean isComplete() {
        return constraint != null && constraint.isComplete();
    }

    /** Returns the place of a token's entry, which is added if it is missing. */
    private int place(int token) {
        int place = places.computeIfAbsent(token, key -> places.size() * LogitEdits.ENTRY);
        if (place >= entries.length) {
            entries = Arrays.copyOf(entries, Math.max(64 * LogitEdits.ENTRY, 2 * place));
        }
        entries[place] = token;
        return place;
    }

    private void set(int token, int field, int value) {
        int place = place(token); // May replace the array.
        entries[place + field] = value;
    }

    /**
     * Tells the sampler a generated token. May be called after {@link #next} for the token after
     * it, if the device has sampled it and counts it itself. Throws if the grammar does not allow
     * the token.
     */
    public void append(int token) {
        if (constraint != null && !stopTokens.contains(token)) {
            constraint.accept(token);
        }
        if (penalizes) {
            int place = place(token);
            entries[place + 1]++;
        }
    }

    /** {@return the parameters of the next token} Uses up a random number. */
    public SamplingParameters next() {
        boolean mayStop = sampled++ >= options.minTokens();
        double temperature = options.temperature();
        boolean greedy = temperature == 0;
        return new SamplingParameters(
                temperature,
                greedy ? 0 : options.topK(),
                greedy ? 1 : options.topP(),
                greedy ? 0 : options.minP(),
                greedy ? 0 : random.nextLong(),
                -1,
                options.topLogProbabilities(),
                edits(mayStop));
    }

    private LogitEdits edits(boolean mayStop) {
        boolean forbids = !mayStop && !stopTokens.isEmpty();
        Supplier<int[]> bits = constraint == null ? null : constraint.prepare();
        if (!penalizes && !forbids && bits == null && options.logitBias().isEmpty()) {
            return null;
        }
        int[] now = Arrays.copyOf(entries, places.size() * LogitEdits.ENTRY);
        if (forbids) {
            int never = Float.floatToRawIntBits(Float.NEGATIVE_INFINITY);
            stopTokens.forEach(token -> now[places.get(token) + 2] = never);
        }
        return new LogitEdits(
                repetitionPenalty,
                (float) options.frequencyPenalty(),
                (float) options.presencePenalty(),
                now,
                bits);
    }

    /**
     * Samples a token for each sequence. Takes the token that the device has sampled, if it has;
     * otherwise copies the logits of the sequence to the host. Null for a sequence whose {@link
     * Logits.DeviceToken#logSumExp} is not finite.
     */
    public static List<SampledToken> sample(Logits logits, List<SamplingParameters> parameters) {
        List<SampledToken> tokens = new ArrayList<>();
        for (Logits.DeviceToken onDevice : logits.deviceTokens()) {
            int sequence = tokens.size();
            SamplingParameters sampling = parameters.get(sequence);
            if (!Double.isFinite(onDevice.logSumExp())) {
                tokens.add(null);
            } else if (sampling.isPlain() || onDevice.sampled()) {
                tokens.add(
                        new SampledToken(
                                onDevice.token(),
                                logProbability(onDevice.logit(), onDevice.logSumExp()),
                                onDevice.top()));
            } else {
                tokens.add(sample(logits.toArray(sequence), onDevice.logSumExp(), sampling));
            }
        }
        return tokens;
    }

    static float logProbability(float logit, double logSumExp) {
        return (float) (logit - logSumExp);
    }

    /** {@code logSumExp} is the logarithm of the sum of the exponentials of the logits. */
    static SampledToken sample(float[] logits, double logSumExp, SamplingParameters parameters) {
        int token = parameters.given();
        if (token < 0) {
            float[] edited = logits;
            if (parameters.edits() != null) {
                edited = logits.clone();
                parameters.edits().apply(edited);
            }
            token = parameters.temperature() == 0 ? argMax(edited) : draw(edited, parameters);
        }
        return new SampledToken(
                token,
                logProbability(logits[token], logSumExp),
                top(logits, logSumExp, parameters.topLogProbabilities()));
    }

    private static List<TokenLogProbability> top(float[] logits, double logSumExp, int count) {
        int[] best = new int[Math.min(count, logits.length)]; // the first of equal ones first
        int size = 0;
        for (int token = 0; token < logits.length && best.length > 0; token++) {
            if (size < best.length || logits[token] > logits[best[size - 1]]) {
                int place = size < best.length ? size++ : size - 1;
                for (; place > 0 && logits[best[place - 1]] < logits[token]; place--) {
                    best[place] = best[place - 1];
                }
                best[place] = token;
            }
        }
        return Arrays.stream(best)
                .mapToObj(t -> new TokenLogProbability(t, logProbability(logits[t], logSumExp)))
                .toList();
    }

    private static int argMax(float[] logits) {
        int best = 0;
        for (int token = 1; token < logits.length; token++) {
            if (logits[token] > logits[best]) {
                best = token;
            }
        }
        return best;
    }

    private static int draw(float[] logits, SamplingParameters parameters) {
        int topK = parameters.topK();
        double topP = parameters.topP();
        double highest = logits[argMax(logits)];
        double least =
                topK > 0 && topK < logits.length
                        ? kthHighest(logits, topK)
                        : Double.NEGATIVE_INFINITY;
        double[] weights = new double[logits.length];
        double sum = 0;
        for (int token = 0; token < logits.length; token++) {
            if (logits[token] >= least) {
                double weight = Math.exp((logits[token] - highest) / parameters.temperature());
                weights[token] = weight < parameters.minP() ? 0 : weight;
                sum += weights[token];
            }
        }
        if (topP < 1) {
            sum = applyTopP(weights, sum, topP);
        }
        double left = (parameters.random() >>> 11) * 0x1.0p-53 * sum; // 53 bits, as nextDouble()
        int last = 0;
        for (int token = 0; token < weights.length; token++) {
            if (weights[token] > 0) {
                last = token;
                left -= weights[token];
                if (left < 0) {
                    break;
                }
            }
        }
        return last;
    }

    /** Returns the K-th highest logit. Top-k keeps all tokens whose logit is at least this. */
    private static float kthHighest(float[] logits, int topK) {
        float[] sorted = logits.clone();
        Arrays.sort(sorted);
        return sorted[sorted.length - topK];
    }

    /**
     * Keeps the smallest set of the largest weights whose sum reaches {@code topP * sum}, and sets
     * the other weights to 0. Returns the sum of the kept weights.
     */
    private static double applyTopP(double[] weights, double sum, double topP) {
        // Weights below this are not sorted: together they have less than 1 - topP of the sum, so
        // top-p drops them.
        double negligible = (1 - topP) * sum / weights.length;
        double[] sorted = Arrays.stream(weights).filter(weight -> weight >= negligible).toArray();
        Arrays.sort(sorted);
        double kept = 0;
        int index = sorted.length;
        while (index > 0 && kept < topP * sum) {
            kept += sorted[--index];
        }
        double least = sorted[index];
        // Of the weights equal to the smallest kept weight, keep only as many as needed: those of
        // the first tokens.
        int equal = 0;
        for (int i = index; i < sorted.length && sorted[i] == least; i++) {
            equal++;
        }
        for (int token = 0; token < weights.length; token++) {
            if (weights[token] < least || (weights[token] == least && equal-- <= 0)) {
                weights[token] = 0;
            }
        }
        return kept;
    }
}
