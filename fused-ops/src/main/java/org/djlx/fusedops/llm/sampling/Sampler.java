// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.sampling;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.SplittableRandom;
import org.djlx.fusedops.llm.GenerationRequest;

/**
 * Samples the next tokens of one sequence. The result depends only on the seed, the logits and the
 * number of tokens sampled before. Not thread-safe.
 */
public final class Sampler {

    /**
     * A sampled token.
     *
     * @param token the token
     * @param logProbability the token's log probability, before penalties and temperature
     */
    public record SampledToken(int token, float logProbability) {}

    private final double temperature;
    private final int topK;
    private final double topP;
    private final float penalty;
    private final SplittableRandom random;
    private final BitSet seen = new BitSet();

    /**
     * Creates the sampler of a sequence.
     *
     * @param request has the sampling parameters
     * @param prompt the tokens of the prompt, to which the repetition penalty applies
     */
    public Sampler(GenerationRequest request, int[] prompt) {
        temperature = request.temperature();
        topK = request.topK();
        topP = request.topP();
        // Clamped, because a float of 0 or infinity would make logits NaN.
        double requested = request.repetitionPenalty();
        penalty = (float) Math.max(Float.MIN_NORMAL, Math.min(Float.MAX_VALUE, requested));
        random =
                request.seed().isPresent()
                        ? new SplittableRandom(request.seed().getAsLong())
                        : new SplittableRandom();
        for (int token : prompt) {
            seen.set(token);
        }
    }

    /** {@return whether the sampled token is always the argmax of the unchanged logits} */
    public boolean isGreedy() {
        return temperature == 0 && penalty == 1;
    }

    /**
     * {@return the parameters for sampling the next token on the device; {@link
     * SamplingParameters#GREEDY} also if the repetition penalty requires sampling on the host} This
     * call uses up the random number of the next {@link #sample(float[], double)}.
     */
    public SamplingParameters deviceParameters() {
        return temperature == 0 || penalty != 1
                ? SamplingParameters.GREEDY
                : new SamplingParameters(temperature, topK, topP, random.nextLong());
    }

    /**
     * Samples a token for each sequence. Takes the token that the device has sampled, if possible;
     * otherwise copies the logits of the sequence to the host.
     *
     * @param logits the logits
     * @param samplers the sampler of each sequence
     * @return the tokens; null for a sequence with a logit that is infinite or NaN
     */
    public static List<SampledToken> sample(Logits logits, List<Sampler> samplers) {
        List<SampledToken> tokens = new ArrayList<>();
        for (Logits.DeviceToken onDevice : logits.deviceTokens()) {
            int sequence = tokens.size();
            Sampler sampler = samplers.get(sequence);
            if (!Double.isFinite(onDevice.logSumExp())) {
                tokens.add(null);
            } else if (sampler.isGreedy() || onDevice.sampled()) {
                float logProbability = (float) (onDevice.logit() - onDevice.logSumExp());
                tokens.add(new SampledToken(onDevice.token(), logProbability));
            } else {
                tokens.add(sampler.sample(logits.toArray(sequence), onDevice.logSumExp()));
            }
        }
        return tokens;
    }

    /**
     * Samples a token.
     *
     * @param logits the logits of all tokens; changed by the call
     * @param logSumExp the logarithm of the sum of their exponentials
     */
    SampledToken sample(float[] logits, double logSumExp) {
        float[] original = penalty == 1 ? logits : logits.clone();
        if (penalty != 1) {
            for (int token = seen.nextSetBit(0); token >= 0; token = seen.nextSetBit(token + 1)) {
                float lowered =
                        logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
                logits[token] = Math.max(-Float.MAX_VALUE, Math.min(Float.MAX_VALUE, lowered));
            }
        }
        int token = temperature == 0 ? argMax(logits) : sampleRandomly(logits);
        seen.set(token);
        return new SampledToken(token, (float) (original[token] - logSumExp));
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

    private int sampleRandomly(float[] logits) {
        double highest = logits[argMax(logits)];
        double least =
                topK > 0 && topK < logits.length ? kthHighest(logits) : Double.NEGATIVE_INFINITY;
        double[] weights = new double[logits.length];
        double sum = 0;
        for (int token = 0; token < logits.length; token++) {
            if (logits[token] >= least) {
                weights[token] = Math.exp((logits[token] - highest) / temperature);
                sum += weights[token];
            }
        }
        if (topP < 1) {
            sum = applyTopP(weights, sum);
        }
        double left = random.nextDouble() * sum;
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
    private double kthHighest(float[] logits) {
        float[] sorted = logits.clone();
        Arrays.sort(sorted);
        return sorted[sorted.length - topK];
    }

    /**
     * Keeps the smallest set of the largest weights whose sum reaches {@code topP * sum}, and sets
     * the other weights to 0. Returns the sum of the kept weights.
     */
    private double applyTopP(double[] weights, double sum) {
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
