// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.UnaryOperator;
import org.djlx.llm.GenerationRequest;
import org.junit.jupiter.api.Test;

class SamplerTest {

    private static final Set<Integer> STOPS = Set.of(3);
    private static final int DRAWS = 20_000;
    // Probabilities of 0.4, 0.3, 0.2 and 0.1, not sorted.
    private static final double[] SHARES = {0.2, 0.4, 0.1, 0.3};

    private static Sampler sampler(int[] prompt, UnaryOperator<GenerationRequest.Builder> change) {
        GenerationRequest.Builder builder = GenerationRequest.builder().setPromptTokens(prompt);
        return new Sampler(change.apply(builder).build(), prompt, STOPS);
    }

    private static Sampler.SampledToken sample(Sampler sampler, float[] logits, double logSumExp) {
        Sampler.SampledToken token = Sampler.sample(logits, logSumExp, sampler.next());
        sampler.append(token.token());
        return token;
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
            Sampler.SampledToken sampled = sample(sampler, logits(), 0);
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
            assertTrue(sample(sampler, new float[] {1, 1, 1, 1}, 0).token() < 2);
        }
    }

    @Test
    void takesTheMostProbableAtTemperatureZero() {
        Sampler sampler = sampler(new int[] {0}, builder -> builder.optTopK(1));
        assertTrue(sampler.next().isPlain());
        assertEquals(1, sample(sampler, logits(), 0).token());
        assertEquals(0, sample(sampler, new float[] {2, 2}, 0).token());
    }

    @Test
    void penaltyLowersSeenTokens() {
        Sampler sampler = sampler(new int[] {1, 1}, builder -> builder.optRepetitionPenalty(2));
        assertTrue(!sampler.next().isPlain());
        // The second logit, of a token in the prompt, is lowered from 4 to 2.
        Sampler.SampledToken first = sample(sampler, new float[] {-3, 4, 3}, 1);
        assertEquals(2, first.token());
        assertEquals(2, first.logProbability()); // of the unchanged logit
        // A negative logit is lowered from -1 to -2, once for any number of occurrences.
        assertEquals(0, sample(sampler, new float[] {-1.5f, -1, -1}, 0).token());
        assertEquals(1, sample(sampler, new float[] {-3, -1, -1.5f}, 0).token());
    }

    @Test
    void extremePenaltiesLeaveScoresThatCanBeDrawnFrom() {
        for (double temperature : new double[] {0, 1}) {
            Sampler least = sampler(new int[] {1}, extreme(Double.MIN_NORMAL, temperature));
            assertEquals(1, sample(least, new float[] {2, 1, -1, 0}, 0).token());
            Sampler most = sampler(new int[] {0, 1, 2}, extreme(1e300, temperature));
            assertEquals(3, sample(most, new float[] {0, -1, -2, 1}, 0).token());
            Sampler all = sampler(new int[] {0, 1}, extreme(1e300, temperature));
            assertEquals(0, sample(all, new float[] {-1, -1}, 0).token());
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
                assertEquals(sample(a, logits(), 0), sample(b, logits(), 0));
            }
        }
    }

    @Test
    void parametersAreThoseOfTheRequest() {
        SamplingParameters parameters =
                sampler(
                                new int[] {0},
                                x ->
                                        x.optTemperature(0.5)
                                                .optTopK(3)
                                                .optTopP(0.9)
                                                .optMinP(0.1)
                                                .optTopLogProbabilities(4))
                        .next();
        assertEquals(
                new SamplingParameters(0.5, 3, 0.9, 0.1, parameters.random(), -1, 4, null),
                parameters);
        assertEquals(SamplingParameters.GREEDY, sampler(new int[] {0}, x -> x.optTopK(3)).next());
    }

    @Test
    void minPLeavesTokensThatAreProbableEnough() {
        draws(
                new double[] {2.0 / 9, 4.0 / 9, 0, 3.0 / 9},
                builder -> builder.optTemperature(1).optMinP(0.45));
        draws(new double[] {0, 1, 0, 0}, builder -> builder.optTemperature(1).optMinP(1));
        // The share is that of the probabilities with the temperature: 0.5625 at 0.5.
        draws(
                new double[] {0, 16.0 / 25, 0, 9.0 / 25},
                builder -> builder.optTemperature(0.5).optMinP(0.5));
    }

    @Test
    void penaltiesCountGeneratedTokensOnly() {
        Sampler sampler =
                sampler(
                        new int[] {0},
                        x -> x.optFrequencyPenalty(0.5).optPresencePenalty(1).optTopK(1));
        float[] logits = {3, 2, 0};
        int[] tokens = new int[6];
        double[] edited = new double[3];
        int[] counts = new int[3];
        for (int i = 0; i < tokens.length; i++) {
            tokens[i] = sample(sampler, logits.clone(), 0).token();
            int best = 0;
            for (int token = 0; token < 3; token++) {
                edited[token] = logits[token] - 0.5 * counts[token] - (counts[token] > 0 ? 1 : 0);
                best = edited[token] > edited[best] ? token : best;
            }
            assertEquals(best, tokens[i], "token " + i);
            counts[best]++;
        }
        assertTrue(counts[0] > 1 && counts[1] > 1, Arrays.toString(tokens));
    }

    @Test
    void biasesComeBeforeThePenalties() {
        Sampler sampler =
                sampler(
                        new int[] {2},
                        x -> x.optLogitBias(Map.of(2, 4.0, 0, -100.0)).optRepetitionPenalty(2));
        // (1 + 4) / 2 is more than 2; (1 / 2) + 4 would be more than 3, too.
        assertEquals(2, sample(sampler, new float[] {50, 2, 1}, 0).token());
        assertEquals(1, sample(sampler, new float[] {50, 3, 1}, 0).token());
    }

    @Test
    void stopTokensHaveToWaitForTheMinimum() {
        Sampler sampler = sampler(new int[] {0}, x -> x.optMinTokens(2));
        float[] logits = {1, 2, 3, 4}; // 3 is a stop token
        assertEquals(2, sample(sampler, logits, 4).token());
        assertEquals(2, sample(sampler, logits, 4).token());
        assertEquals(3, sample(sampler, logits, 4).token());
        assertTrue(sampler.next().isPlain());
        assertEquals(4, logits[3]); // not changed by the call
    }

    @Test
    void onlyAllowedTokensAreSampled() {
        float[] logits = {1, 9, 2, 9};
        new LogitEdits(1, 0, 0, new int[0], () -> new int[] {0b101}).apply(logits);
        float never = Float.NEGATIVE_INFINITY;
        assertArrayEquals(new float[] {1, never, 2, never}, logits);
    }

    @Test
    void topTokensAreOfTheUneditedLogits() {
        Sampler sampler =
                sampler(
                        new int[] {0},
                        x -> x.optTopLogProbabilities(3).optLogitBias(Map.of(1, -100.0)));
        Sampler.SampledToken token = sample(sampler, new float[] {1, 4, 2, 2, 0}, 5);
        assertEquals(2, token.token());
        assertEquals(-3, token.logProbability());
        assertEquals(
                List.of(
                        new TokenLogProbability(1, -1),
                        new TokenLogProbability(2, -3),
                        new TokenLogProbability(3, -3)),
                token.top());
        assertEquals(5, top(9).size());
        assertEquals(0, top(0).size());
    }

    private static List<TokenLogProbability> top(int count) {
        SamplingParameters parameters = SamplingParameters.ofGiven(1, count);
        Sampler.SampledToken token = Sampler.sample(new float[] {1, 4, 2, 2, 0}, 5, parameters);
        assertEquals(new Sampler.SampledToken(1, -1, token.top()), token);
        return token.top();
    }
}
