// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.BaseNDManager;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.djlx.llm.model.EmbeddingConfig.Pooling;
import org.djlx.llm.ops.SequenceEncoder.Group;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Compares padded sequences with loops over their tokens in float64. */
class PaddedSequencesTest {

    private static final int HEADS = 2;
    private static final int SIZE = 4; // of a head

    private final NDManager manager = NDManager.newBaseManager("PyTorch");
    private final Random random = new Random(11);
    private final List<Group> groups = groups(1, 1, 2, 7, 7, 8, 9, 10, 31, 40, 40, 41);

    @AfterEach
    void close() {
        manager.close();
    }

    private static List<Group> groups(int... lengths) {
        List<Group> groups = new ArrayList<>();
        long first = 0;
        for (int i = 0; i < lengths.length; ) {
            int begin = i;
            while (i < lengths.length && lengths[i] == lengths[begin]) {
                i++;
            }
            groups.add(new Group(first, i - begin, lengths[begin]));
            first += (long) (i - begin) * lengths[begin];
        }
        return groups;
    }

    private static int tokens(List<Group> groups) {
        return groups.stream().mapToInt(group -> (int) group.tokens()).sum();
    }

    private float[] random(int count) {
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return values;
    }

    @Test
    void tokensAttendToTheirSequence() {
        int width = HEADS * SIZE;
        float[] x = random(tokens(groups) * 3 * width);
        NDArray array = manager.create(x, new Shape(tokens(groups), 3, HEADS, SIZE));
        PaddedSequences padded = new PaddedSequences(manager, ScalarType.FLOAT32, groups);
        float[] actual = padded.attend(array).toFloatArray();
        assertEquals(tokens(groups) * width, actual.length);
        for (Group group : groups) {
            for (long start : group.starts().toArray()) {
                for (int token = 0; token < group.length(); token++) {
                    for (int head = 0; head < HEADS; head++) {
                        double[] expected = attended(x, (int) start, group, token, head);
                        int at = (int) (start + token) * width + head * SIZE;
                        for (int e = 0; e < SIZE; e++) {
                            assertEquals(expected[e], actual[at + e], 1e-5);
                        }
                    }
                }
            }
        }
    }

    private static double[] attended(float[] x, int start, Group group, int token, int head) {
        int width = HEADS * SIZE;
        double[] sum = new double[SIZE];
        double weights = 0;
        for (int other = 0; other < group.length(); other++) {
            double score = 0;
            int key = (start + other) * 3 * width + width + head * SIZE;
            for (int e = 0; e < SIZE; e++) {
                score += x[(start + token) * 3 * width + head * SIZE + e] * x[key + e];
            }
            double weight = Math.exp(score / Math.sqrt(SIZE));
            weights += weight;
            for (int e = 0; e < SIZE; e++) {
                sum[e] += weight * x[key + width + e];
            }
        }
        for (int e = 0; e < SIZE; e++) {
            sum[e] /= weights;
        }
        return sum;
    }

    @ParameterizedTest
    @EnumSource(
            mode = EnumSource.Mode.EXCLUDE,
            names = {"CLS", "LAST_TOKEN"})
    void vectorsArePooledWithoutPadding(Pooling pooling) {
        float[] x = random(tokens(groups) * SIZE);
        NDArray array = manager.create(x, new Shape(tokens(groups), SIZE));
        PaddedSequences padded = new PaddedSequences(manager, ScalarType.FLOAT32, groups);
        float[] actual = padded.pool(array, pooling).toFloatArray();
        int sequence = 0;
        for (Group group : groups) {
            for (long start : group.starts().toArray()) {
                for (int e = 0; e < SIZE; e++) {
                    double expected = pooled(x, (int) start, (int) group.length(), e, pooling);
                    assertEquals(expected, actual[sequence * SIZE + e], 1e-5, pooling + "");
                }
                sequence++;
            }
        }
        assertEquals(sequence * SIZE, actual.length);
    }

    private static double pooled(float[] x, int start, int length, int e, Pooling pooling) {
        double sum = 0;
        double weighted = 0;
        double most = Double.NEGATIVE_INFINITY;
        for (int token = 0; token < length; token++) {
            double value = x[(start + token) * SIZE + e];
            sum += value;
            weighted += (token + 1) * value;
            most = Math.max(most, value);
        }
        return switch (pooling) {
            case MAX -> most;
            case MEAN -> sum / length;
            case MEAN_SQRT -> sum / Math.sqrt(length);
            case WEIGHTED_MEAN -> weighted / (length * (length + 1) / 2.0);
            default -> throw new IllegalArgumentException(pooling + "");
        };
    }

    @Test
    void nanStaysInItsSequence() {
        float[] x = random(tokens(groups) * 3 * HEADS * SIZE);
        Arrays.fill(x, 0, 3 * HEADS * SIZE, Float.NaN); // the first sequence has one token
        NDArray array = manager.create(x, new Shape(tokens(groups), 3, HEADS, SIZE));
        PaddedSequences padded = new PaddedSequences(manager, ScalarType.FLOAT32, groups);
        assertOnlyFirstIsNan(padded.attend(array).toFloatArray(), HEADS * SIZE);
        NDArray vectors = array.reshape(tokens(groups), -1);
        for (Pooling pooling :
                List.of(Pooling.MAX, Pooling.MEAN, Pooling.MEAN_SQRT, Pooling.WEIGHTED_MEAN)) {
            assertOnlyFirstIsNan(padded.pool(vectors, pooling).toFloatArray(), 3 * HEADS * SIZE);
        }
    }

    private static void assertOnlyFirstIsNan(float[] vectors, int size) {
        for (int i = 0; i < vectors.length; i++) {
            assertEquals(i < size, Float.isNaN(vectors[i]), "element " + i);
        }
    }

    /** The arrays of each layer are freed with the layer. */
    @Test
    void resultsBelongToTheManagerOfTheirInput() {
        PaddedSequences padded = new PaddedSequences(manager, ScalarType.FLOAT32, groups);
        int before = ((BaseNDManager) manager).getManagedArrays().size();
        try (NDManager layer = manager.newSubManager()) {
            NDArray x = layer.ones(new Shape(tokens(groups), 3, HEADS, SIZE));
            assertSame(layer, padded.attend(x).getManager());
        }
        assertEquals(before, ((BaseNDManager) manager).getManagedArrays().size());
    }

    /** One long text beside many short ones: padded to the longest, they would take 512 times. */
    @Test
    void oneLongSequenceDoesNotPadTheShortOnes() {
        int[] lengths = new int[1001];
        Arrays.fill(lengths, 8);
        lengths[1000] = 4096;
        List<Group> mixed = groups(lengths);
        PaddedSequences padded = new PaddedSequences(manager, ScalarType.FLOAT32, mixed);
        NDArray x = manager.ones(new Shape(tokens(mixed), 1));
        float[] means = padded.pool(x, Pooling.MEAN).toFloatArray();
        assertEquals(1001, means.length);
        for (float mean : means) {
            assertEquals(1, mean, 1e-5);
        }
        assertTrue(padded.paddedTokens() <= 1.25 * tokens(mixed), padded.paddedTokens() + "");
    }
}
