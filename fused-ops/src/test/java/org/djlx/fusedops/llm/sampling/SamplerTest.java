/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.sampling;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.Set;
import java.util.function.UnaryOperator;
import org.djlx.fusedops.llm.GenerationRequest;
import org.junit.jupiter.api.Test;

class SamplerTest {

    private static final int DRAWS = 20_000;
    // Probabilities of 0.4, 0.3, 0.2 and 0.1, of which none is in order.
    private static final double[] SHARES = {0.2, 0.4, 0.1, 0.3};

    private static Sampler chooser(int[] prompt, UnaryOperator<GenerationRequest.Builder> change) {
        GenerationRequest.Builder builder = GenerationRequest.builder().setPromptTokens(prompt);
        return new Sampler(change.apply(builder).build(), prompt);
    }

    private static float[] scores() {
        float[] scores = new float[SHARES.length];
        for (int i = 0; i < scores.length; i++) {
            scores[i] = (float) Math.log(SHARES[i]);
        }
        return scores;
    }

    /** Draws many times and checks how often each token came, to four standard deviations. */
    private static void draws(double[] expected, UnaryOperator<GenerationRequest.Builder> change) {
        Sampler chooser = chooser(new int[] {0}, builder -> change.apply(builder.optSeed(5)));
        int[] counts = new int[expected.length];
        for (int i = 0; i < DRAWS; i++) {
            Sampler.Choice choice = chooser.choose(scores(), 0);
            counts[choice.token()]++;
            assertEquals(Math.log(SHARES[choice.token()]), choice.logProbability(), 1e-6);
        }
        for (int token = 0; token < counts.length; token++) {
            double deviation = Math.sqrt(DRAWS * expected[token] * (1 - expected[token]));
            assertEquals(DRAWS * expected[token], counts[token], 4 * deviation, "token " + token);
        }
    }

    @Test
    void drawsByProbability() {
        draws(SHARES, builder -> builder.optTemperature(1));
    }

    @Test
    void temperatureSharpens() {
        double sum = 0.04 + 0.16 + 0.01 + 0.09;
        double[] squares = {0.04 / sum, 0.16 / sum, 0.01 / sum, 0.09 / sum};
        draws(squares, builder -> builder.optTemperature(0.5));
    }

    @Test
    void topKLeavesTheMostProbable() {
        draws(
                new double[] {0, 4.0 / 7, 0, 3.0 / 7},
                builder -> builder.optTemperature(1).optTopK(2));
        draws(SHARES, builder -> builder.optTemperature(1).optTopK(9));
    }

    @Test
    void topPLeavesTheFewestThatHaveTheShare() {
        draws(new double[] {0, 1, 0, 0}, builder -> builder.optTemperature(1).optTopP(0.3));
        draws(
                new double[] {2.0 / 9, 4.0 / 9, 0, 3.0 / 9},
                builder -> builder.optTemperature(1).optTopP(0.75));
        // After the top-k, of what that has left: 0.4 is a share of 4/7.
        draws(
                new double[] {0, 1, 0, 0},
                builder -> builder.optTemperature(1).optTopK(2).optTopP(0.55));
    }

    @Test
    void topPTakesTheFirstOfEqualOnes() {
        Sampler chooser =
                chooser(
                        new int[] {0},
                        builder -> builder.optTemperature(1).optTopP(0.5).optSeed(1));
        for (int i = 0; i < 100; i++) {
            assertTrue(chooser.choose(new float[] {1, 1, 1, 1}, 0).token() < 2);
        }
    }

    @Test
    void takesTheMostProbableAtTemperatureZero() {
        Sampler chooser = chooser(new int[] {0}, builder -> builder.optTopK(1));
        assertTrue(chooser.isGreedy());
        assertEquals(1, chooser.choose(scores(), 0).token());
        assertEquals(0, chooser.choose(new float[] {2, 2}, 0).token());
    }

    @Test
    void penaltyLowersWhatWasSeen() {
        Sampler chooser = chooser(new int[] {1, 1}, builder -> builder.optRepetitionPenalty(2));
        assertTrue(!chooser.isGreedy());
        // The second, seen in the prompt, goes from 4 to 2.
        Sampler.Choice first = chooser.choose(new float[] {-3, 4, 3}, 1);
        assertEquals(2, first.token());
        assertEquals(2, first.logProbability()); // of the score as it came
        // Negative ones go down too, here from -1 to -2; once, however often they came.
        assertEquals(0, chooser.choose(new float[] {-1.5f, -1, -1}, 0).token());
        assertEquals(1, chooser.choose(new float[] {-3, -1, -1.5f}, 0).token());
    }

    @Test
    void extremePenaltiesLeaveScoresThatCanBeDrawnFrom() {
        for (double temperature : new double[] {0, 1}) {
            Sampler least = chooser(new int[] {1}, extreme(Double.MIN_NORMAL, temperature));
            assertEquals(1, least.choose(new float[] {2, 1, -1, 0}, 0).token());
            Sampler most = chooser(new int[] {0, 1, 2}, extreme(1e300, temperature));
            assertEquals(3, most.choose(new float[] {0, -1, -2, 1}, 0).token());
            Sampler all = chooser(new int[] {0, 1}, extreme(1e300, temperature));
            assertEquals(0, all.choose(new float[] {-1, -1}, 0).token());
        }
    }

    private static UnaryOperator<GenerationRequest.Builder> extreme(double p, double temperature) {
        return x -> x.optRepetitionPenalty(p).optTemperature(temperature).optTopP(0.5).optSeed(1);
    }

    @Test
    void sameSeedSameTokens() {
        for (int seed = 0; seed < 5; seed++) {
            long same = seed;
            Sampler a = chooser(new int[] {0}, x -> x.optTemperature(1).optSeed(same));
            Sampler b = chooser(new int[] {0}, x -> x.optTemperature(1).optSeed(same));
            for (int i = 0; i < 50; i++) {
                assertEquals(a.choose(scores(), 0), b.choose(scores(), 0));
            }
        }
    }

    /** So a sequence goes on as it would have, whoever drew its tokens before. */
    @Test
    void drawsOfTheRanksStandForItsOwn() {
        Sampler own = chooser(new int[] {0}, x -> x.optTemperature(1).optSeed(3));
        Sampler shared = chooser(new int[] {0}, x -> x.optTemperature(1).optSeed(3));
        Set<Long> numbers = new HashSet<>();
        for (int i = 0; i < 50; i++) {
            Sampler.Choice choice = own.choose(scores(), 0);
            if (i % 3 == 0) {
                assertEquals(choice, shared.choose(scores(), 0));
            } else {
                numbers.add(shared.draw().random());
            }
        }
        assertEquals(33, numbers.size());
    }

    @Test
    void ranksDrawUnlessWhatCameBeforeMatters() {
        SamplingParameters draw =
                chooser(new int[] {0}, x -> x.optTemperature(0.5).optTopK(3).optTopP(0.9)).draw();
        assertEquals(new SamplingParameters(0.5, 3, 0.9, draw.random()), draw);
        assertEquals(SamplingParameters.BEST, chooser(new int[] {0}, x -> x.optTopK(3)).draw());
        Sampler penalized =
                chooser(new int[] {0}, x -> x.optTemperature(0.5).optRepetitionPenalty(1.1));
        assertEquals(SamplingParameters.BEST, penalized.draw());
    }
}
