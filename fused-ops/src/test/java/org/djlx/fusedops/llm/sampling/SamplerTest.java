// SPDX-License-Identifier: Apache-2.0
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
    // Probabilities of 0.4, 0.3, 0.2 and 0.1, not sorted.
    private static final double[] SHARES = {0.2, 0.4, 0.1, 0.3};

    private static Sampler sampler(int[] prompt, UnaryOperator<GenerationRequest.Builder> change) {
        GenerationRequest.Builder builder = GenerationRequest.builder().setPromptTokens(prompt);
        return new Sampler(change.apply(builder).build(), prompt);
    }

    private static float[] logits() {
        float[] logits = new float[SHARES.length];
        for (int i = 0; i < logits.length; i++) {
            logits[i] = (float) Math.log(SHARES[i]);
        }
        return logits;
    }

    /** Samples many times and checks the count of each token, to four standard deviations. */
    private static void draws(double[] expected, UnaryOperator<GenerationRequest.Builder> change) {
        Sampler sampler = sampler(new int[] {0}, builder -> change.apply(builder.optSeed(5)));
        int[] counts = new int[expected.length];
        for (int i = 0; i < DRAWS; i++) {
            Sampler.SampledToken sampled = sampler.sample(logits(), 0);
            counts[sampled.token()]++;
            assertEquals(Math.log(SHARES[sampled.token()]), sampled.logProbability(), 1e-6);
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
        // Top-p applies to what top-k leaves: 0.4 becomes 4/7.
        draws(
                new double[] {0, 1, 0, 0},
                builder -> builder.optTemperature(1).optTopK(2).optTopP(0.55));
    }

    @Test
    void topPTakesTheFirstOfEqualOnes() {
        Sampler sampler =
                sampler(
                        new int[] {0},
                        builder -> builder.optTemperature(1).optTopP(0.5).optSeed(1));
        for (int i = 0; i < 100; i++) {
            assertTrue(sampler.sample(new float[] {1, 1, 1, 1}, 0).token() < 2);
        }
    }

    @Test
    void takesTheMostProbableAtTemperatureZero() {
        Sampler sampler = sampler(new int[] {0}, builder -> builder.optTopK(1));
        assertTrue(sampler.isGreedy());
        assertEquals(1, sampler.sample(logits(), 0).token());
        assertEquals(0, sampler.sample(new float[] {2, 2}, 0).token());
    }

    @Test
    void penaltyLowersWhatWasSeen() {
        Sampler sampler = sampler(new int[] {1, 1}, builder -> builder.optRepetitionPenalty(2));
        assertTrue(!sampler.isGreedy());
        // The second logit, of a token in the prompt, is lowered from 4 to 2.
        Sampler.SampledToken first = sampler.sample(new float[] {-3, 4, 3}, 1);
        assertEquals(2, first.token());
        assertEquals(2, first.logProbability()); // of the unchanged logit
        // A negative logit is lowered from -1 to -2, once for any number of occurrences.
        assertEquals(0, sampler.sample(new float[] {-1.5f, -1, -1}, 0).token());
        assertEquals(1, sampler.sample(new float[] {-3, -1, -1.5f}, 0).token());
    }

    @Test
    void extremePenaltiesLeaveScoresThatCanBeDrawnFrom() {
        for (double temperature : new double[] {0, 1}) {
            Sampler least = sampler(new int[] {1}, extreme(Double.MIN_NORMAL, temperature));
            assertEquals(1, least.sample(new float[] {2, 1, -1, 0}, 0).token());
            Sampler most = sampler(new int[] {0, 1, 2}, extreme(1e300, temperature));
            assertEquals(3, most.sample(new float[] {0, -1, -2, 1}, 0).token());
            Sampler all = sampler(new int[] {0, 1}, extreme(1e300, temperature));
            assertEquals(0, all.sample(new float[] {-1, -1}, 0).token());
        }
    }

    private static UnaryOperator<GenerationRequest.Builder> extreme(double p, double temperature) {
        return x -> x.optRepetitionPenalty(p).optTemperature(temperature).optTopP(0.5).optSeed(1);
    }

    @Test
    void sameSeedSameTokens() {
        for (int seed = 0; seed < 5; seed++) {
            long same = seed;
            Sampler a = sampler(new int[] {0}, x -> x.optTemperature(1).optSeed(same));
            Sampler b = sampler(new int[] {0}, x -> x.optTemperature(1).optSeed(same));
            for (int i = 0; i < 50; i++) {
                assertEquals(a.sample(logits(), 0), b.sample(logits(), 0));
            }
        }
    }

    /** Later tokens do not depend on whether earlier ones were sampled on the device. */
    @Test
    void drawsOfTheRanksStandForItsOwn() {
        Sampler own = sampler(new int[] {0}, x -> x.optTemperature(1).optSeed(3));
        Sampler shared = sampler(new int[] {0}, x -> x.optTemperature(1).optSeed(3));
        Set<Long> numbers = new HashSet<>();
        for (int i = 0; i < 50; i++) {
            Sampler.SampledToken sampled = own.sample(logits(), 0);
            if (i % 3 == 0) {
                assertEquals(sampled, shared.sample(logits(), 0));
            } else {
                numbers.add(shared.deviceParameters().random());
            }
        }
        assertEquals(33, numbers.size());
    }

    @Test
    void ranksDrawUnlessWhatCameBeforeMatters() {
        SamplingParameters parameters =
                sampler(new int[] {0}, x -> x.optTemperature(0.5).optTopK(3).optTopP(0.9))
                        .deviceParameters();
        assertEquals(new SamplingParameters(0.5, 3, 0.9, parameters.random()), parameters);
        assertEquals(
                SamplingParameters.GREEDY,
                sampler(new int[] {0}, x -> x.optTopK(3)).deviceParameters());
        Sampler penalized =
                sampler(new int[] {0}, x -> x.optTemperature(0.5).optRepetitionPenalty(1.1));
        assertEquals(SamplingParameters.GREEDY, penalized.deviceParameters());
    }
}
