// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

import java.util.Collections;
import java.util.List;
import java.util.function.IntToDoubleFunction;
import java.util.stream.IntStream;

/**
 * Rotary position embedding (Su et al., 2021, <a
 * href="https://arxiv.org/abs/2104.09864">arXiv:2104.09864</a>) and its scaling to longer texts.
 * Entries of {@code config.json} mean the same as in transformers.
 *
 * @param theta the base of the frequencies
 * @param magnitude the factor of rotated elements; 1 for none
 * @param divisors the divisor of the frequency of each rotated pair of a head
 * @param longDivisors the {@code divisors} if the maximum length of sequences is above {@code
 *     originalLength}
 * @param growth the growth of the base with each position from {@code originalLength} on, in
 *     original lengths (dynamic NTK); 0 for none
 * @param originalLength the length of the original training, in tokens
 * @param maxLength the maximum number of tokens with scaling; 0 if scaling does not extend it
 * @param interleaved whether files have the elements of a pair next to each other; otherwise the
 *     first elements of all pairs come first
 */
public record Rope(
        double theta,
        double magnitude,
        List<Double> divisors,
        List<Double> longDivisors,
        double growth,
        int originalLength,
        int maxLength,
        boolean interleaved) {

    /** {@return an embedding of whole heads, without scaling} */
    public static Rope of(double theta, int headSize) {
        return linear(theta, headSize / 2, 1);
    }

    /** {@return an embedding that divides frequencies; infinity leaves heads as they are} */
    static Rope linear(double theta, int pairs, double factor) {
        return of(theta, 1, Collections.nCopies(pairs, factor));
    }

    private static Rope of(double theta, double magnitude, List<Double> divisors) {
        return new Rope(theta, magnitude, divisors, divisors, 0, 0, 0, false);
    }

    /** {@return this embedding for files that have the elements of a pair next to each other} */
    Rope ofInterleavedPairs() {
        return new Rope(
                theta, magnitude, divisors, longDivisors, growth, originalLength, maxLength, true);
    }

    /**
     * {@return an embedding with Llama 3.1's scaling: wavelengths longer than {@code originalLength
     * / low} are multiplied by the factor, those shorter than {@code originalLength / high} are
     * not, with a ramp between}
     *
     * @param low {@code low_freq_factor}, such as 1
     * @param high {@code high_freq_factor}, such as 4
     * @param originalLength the length of the original training in tokens, such as 8192
     */
    public static Rope llama3(
            double theta, int pairs, double factor, double low, double high, int originalLength) {
        return of(
                theta,
                1,
                divisors(
                        pairs,
                        factor,
                        pair -> {
                            double turns =
                                    originalLength * frequency(theta, pair, pairs) / (2 * Math.PI);
                            return (turns - low) / (high - low);
                        }));
    }

    /**
     * Returns divisors between a factor and 1: {@code kept} is the part of each frequency that is
     * not divided, limited to 0 to 1.
     */
    private static List<Double> divisors(int pairs, double factor, IntToDoubleFunction kept) {
        return IntStream.range(0, pairs)
                .mapToObj(
                        pair -> {
                            double part = Math.max(0, Math.min(1, kept.applyAsDouble(pair)));
                            return 1 / ((1 - part) / factor + part);
                        })
                .toList();
    }

    private static double frequency(double theta, int pair, int pairs) {
        return Math.pow(theta, -(double) pair / pairs);
    }

    /**
     * Reads the embedding of a file from its rope entries, {@code rope_scaling} or {@code
     * rope_parameters}; {@code defaultTheta} is the base if these have none.
     */
    static Rope read(ConfigEntries json, ConfigEntries entries, double defaultTheta, int headSize) {
        double theta = entries.number("rope_theta", defaultTheta);
        check(theta > 0 && Double.isFinite(theta), "rope_theta must be above 0, not %s", theta);
        double share =
                entries.number("partial_rotary_factor", json.number("partial_rotary_factor", 1.0));
        int rotated = (int) (headSize * share);
        check(
                share > 0 && share <= 1 && rotated % 2 == 0 && rotated > 0,
                "partial_rotary_factor %s must give an even number of elements of head_dim %d",
                share,
                headSize);
        int pairs = rotated / 2;
        int length = json.integer("max_position_embeddings", 2048);
        String kind = entries.text("rope_type", entries.text("type", "default"));
        return switch (kind) {
            case "default" -> linear(theta, pairs, 1);
            case "linear" -> linear(theta, pairs, factor(entries, null));
            case "dynamic" -> {
                List<Double> ones = Collections.nCopies(pairs, 1.0);
                double factor = factor(entries, null);
                int stretched = stretched(length, factor);
                yield new Rope(theta, 1, ones, ones, factor, length, stretched, false);
            }
            case "llama3" -> {
                double low = entries.number("low_freq_factor", null);
                double high = entries.number("high_freq_factor", null);
                check(
                        low > 0 && low < high,
                        "rope_scaling must have 0 < low_freq_factor < high_freq_factor, not %s and"
                                + " %s",
                        low,
                        high);
                int original = originalLength(entries, null);
                yield llama3(theta, pairs, factor(entries, null), low, high, original);
            }
            case "yarn" -> yarn(theta, pairs, entries, length);
            case "longrope", "su" -> {
                int original = json.integer("original_max_position_embeddings", length);
                yield longRope(theta, pairs, entries, originalLength(entries, original), length);
            }
            default ->
                    throw new IllegalArgumentException(
                            "rope_type must be default, linear, dynamic, llama3, yarn or longrope,"
                                    + " not '"
                                    + kind
                                    + "'");
        };
    }

    private static double factor(ConfigEntries entries, Double defaultValue) {
        double factor = entries.number("factor", defaultValue);
        check(
                factor >= 1 && Double.isFinite(factor),
                "the factor of rope_scaling must be 1 or more, not %s",
                factor);
        return factor;
    }

    private static int originalLength(ConfigEntries entries, Integer defaultValue) {
        int length = entries.integer("original_max_position_embeddings", defaultValue);
        ModelConfig.size("original_max_position_embeddings of rope_scaling", length);
        return length;
    }

    /**
     * Reads YaRN (Peng et al., 2023, <a
     * href="https://arxiv.org/abs/2309.00071">arXiv:2309.00071</a>): divides low frequencies and
     * keeps high ones, with a ramp between.
     */
    private static Rope yarn(double theta, int pairs, ConfigEntries entries, int length) {
        int original = originalLength(entries, length);
        double factor = factor(entries, (double) length / original);
        double fast = entries.number("beta_fast", 32.0);
        double slow = entries.number("beta_slow", 1.0);
        check(
                slow > 0 && fast >= slow,
                "rope_scaling must have 0 < beta_slow <= beta_fast, not %s and %s",
                slow,
                fast);
        // Fractional indices of the pairs that rotate fast or slow times in the original length.
        double first = pairs * Math.log(original / (fast * 2 * Math.PI)) / Math.log(theta);
        double last = pairs * Math.log(original / (slow * 2 * Math.PI)) / Math.log(theta);
        boolean truncates = entries.flag("truncate", true);
        double begin = Math.max(0, truncates ? Math.floor(first) : first);
        double end = Math.min(2 * pairs - 1, truncates ? Math.ceil(last) : last);
        double width = end == begin ? 0.001 : end - begin;
        double scale = entries.number("mscale", 0.0);
        double scaleOfAll = entries.number("mscale_all_dim", 0.0);
        double magnitude =
                scale != 0 && scaleOfAll != 0
                        ? magnitude(factor, scale) / magnitude(factor, scaleOfAll)
                        : magnitude(factor, 1);
        List<Double> divisors = divisors(pairs, factor, pair -> 1 - (pair - begin) / width);
        return new Rope(
                theta,
                entries.number("attention_factor", magnitude),
                divisors,
                divisors,
                0,
                original,
                stretched(original, factor),
                false);
    }

    private static int stretched(int length, double factor) {
        return (int) Math.min(ModelConfig.MAX_SIZE, length * factor);
    }

    private static double magnitude(double factor, double scale) {
        return factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1;
    }

    /**
     * Reads LongRoPE (Ding et al., 2024, <a
     * href="https://arxiv.org/abs/2402.13753">arXiv:2402.13753</a>): two lists of divisors. As in
     * vLLM, the maximum length of the sequences decides which one is used, so that all sequences
     * have the same frequencies.
     */
    private static Rope longRope(
            double theta, int pairs, ConfigEntries entries, int original, int length) {
        List<Double> shorter = entries.numbers("short_factor");
        List<Double> longer = entries.numbers("long_factor");
        check(
                shorter.size() == pairs && longer.size() == pairs,
                "short_factor and long_factor must have %d numbers, not %d and %d",
                pairs,
                shorter.size(),
                longer.size());
        double factor = factor(entries, Math.max(1, (double) length / original));
        double magnitude = factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(original));
        return new Rope(
                theta,
                entries.number("attention_factor", magnitude),
                shorter,
                longer,
                0,
                original,
                0,
                false);
    }

    /**
     * {@return the rotation of each pair of elements of a head per position, in radians; 0 for
     * pairs that are not rotated}
     *
     * <p>With dynamic NTK, each query and key has the frequencies of its own position. transformers
     * gives a prompt the frequencies of its last position, so results are equal if the prompt has
     * at most {@code originalLength} tokens.
     */
    public double[] frequencies(int headSize, int position, int maxLength) {
        List<Double> of = maxLength > originalLength ? longDivisors : divisors;
        double grown = Math.max(0, position + 1 - originalLength) * growth / originalLength + 1;
        double base = growth == 0 ? theta : theta * Math.pow(grown, pairs() / (pairs() - 1.0));
        double[] frequencies = new double[headSize / 2];
        for (int pair = 0; pair < pairs(); pair++) {
            frequencies[pair] = frequency(base, pair, pairs()) / of.get(pair);
        }
        return frequencies;
    }

    public int pairs() {
        return divisors.size();
    }

    /**
     * {@return for each row of a head of queries or keys in memory its row in a file}
     *
     * <p>In memory, element i of a head's first half is rotated with element i of its second half:
     * halves begin with the elements of pairs; elements that are not rotated follow. The order
     * changes no score.
     */
    public int[] rows(int headSize) {
        int half = headSize / 2;
        int[] rows = new int[headSize];
        for (int i = 0; i < half; i++) {
            boolean isRotated = i < pairs();
            rows[i] = !isRotated ? pairs() + i : interleaved ? 2 * i : i;
            rows[half + i] = !isRotated ? half + i : interleaved ? 2 * i + 1 : pairs() + i;
        }
        return rows;
    }

    /** Computes cosines and sines, (positions, headSize / 2) each. */
    public void fillTables(int headSize, int positions, float[] cosines, float[] sines) {
        int half = headSize / 2;
        double[] frequencies = frequencies(headSize, 0, positions);
        for (int position = 0; position < positions; position++) {
            if (growth != 0 && position >= originalLength) {
                frequencies = frequencies(headSize, position, positions);
            }
            for (int i = 0; i < half; i++) {
                double scale = i < pairs() ? magnitude : 1;
                double angle = position * frequencies[i];
                cosines[position * half + i] = (float) (scale * Math.cos(angle));
                sines[position * half + i] = (float) (scale * Math.sin(angle));
            }
        }
    }
}
