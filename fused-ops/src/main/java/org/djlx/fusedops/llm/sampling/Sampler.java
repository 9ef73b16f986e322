/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.sampling;

import java.util.Arrays;
import java.util.BitSet;
import java.util.SplittableRandom;
import org.djlx.fusedops.llm.GenerationRequest;

/**
 * Chooses one sequence's next tokens from their scores. What it draws depends on the seed, the
 * scores and the number of tokens that were chosen before. For one thread at a time.
 */
public final class Sampler {

    /** A token, and the logarithm of its probability by the scores as they came. */
    public record Choice(int token, float logProbability) {}

    private final double temperature;
    private final int topK;
    private final double topP;
    private final float penalty;
    private final SplittableRandom random;
    private final BitSet seen = new BitSet();

    public Sampler(GenerationRequest request, int[] prompt) {
        temperature = request.temperature();
        topK = request.topK();
        topP = request.topP();
        // As a float neither 0 nor infinite, which would make scores that are no numbers.
        double asked = request.repetitionPenalty();
        penalty = (float) Math.max(Float.MIN_NORMAL, Math.min(Float.MAX_VALUE, asked));
        random =
                request.seed().isPresent()
                        ? new SplittableRandom(request.seed().getAsLong())
                        : new SplittableRandom();
        for (int token : prompt) {
            seen.set(token);
        }
    }

    /** Tells whether the token with the highest score is taken, whatever came before. */
    public boolean isGreedy() {
        return temperature == 0 && penalty == 1;
    }

    /**
     * Returns how ranks can choose the next token by themselves: the most probable one also if only
     * {@link #choose} can choose one. A draw is that of the next call, which it stands for.
     */
    public SamplingParameters draw() {
        return temperature == 0 || penalty != 1
                ? SamplingParameters.BEST
                : new SamplingParameters(temperature, topK, topP, random.nextLong());
    }

    /**
     * Chooses a token.
     *
     * @param scores those of all tokens; they are changed
     * @param logSum the logarithm of the sum of their exponentials
     */
    Choice choose(float[] scores, double logSum) {
        float[] original = penalty == 1 ? scores : scores.clone();
        if (penalty != 1) {
            for (int token = seen.nextSetBit(0); token >= 0; token = seen.nextSetBit(token + 1)) {
                float lowered =
                        scores[token] > 0 ? scores[token] / penalty : scores[token] * penalty;
                scores[token] = Math.max(-Float.MAX_VALUE, Math.min(Float.MAX_VALUE, lowered));
            }
        }
        int token = temperature == 0 ? best(scores) : draw(scores);
        seen.set(token);
        return new Choice(token, (float) (original[token] - logSum));
    }

    private static int best(float[] scores) {
        int best = 0;
        for (int token = 1; token < scores.length; token++) {
            if (scores[token] > scores[best]) {
                best = token;
            }
        }
        return best;
    }

    private int draw(float[] scores) {
        double highest = scores[best(scores)];
        double least = topK > 0 && topK < scores.length ? kth(scores) : Double.NEGATIVE_INFINITY;
        double[] weights = new double[scores.length];
        double sum = 0;
        for (int token = 0; token < scores.length; token++) {
            if (scores[token] >= least) {
                weights[token] = Math.exp((scores[token] - highest) / temperature);
                sum += weights[token];
            }
        }
        if (topP < 1) {
            sum = keepNucleus(weights, sum);
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

    /** Returns the score that the K highest are not below; equal ones are all kept. */
    private double kth(float[] scores) {
        float[] sorted = scores.clone();
        Arrays.sort(sorted);
        return sorted[sorted.length - topK];
    }

    /**
     * Keeps the fewest of the largest weights that have the wanted share, and returns their sum.
     */
    private double keepNucleus(double[] weights, double sum) {
        // Those so small that even all of them could be left out are not sorted.
        double negligible = (1 - topP) * sum / weights.length;
        double[] sorted = Arrays.stream(weights).filter(weight -> weight >= negligible).toArray();
        Arrays.sort(sorted);
        double kept = 0;
        int index = sorted.length;
        while (index > 0 && kept < topP * sum) {
            kept += sorted[--index];
        }
        double least = sorted[index];
        // Of equal ones as many as are needed, those of the first tokens.
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
