// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.function.BiFunction;
import org.djlx.llm.model.EmbeddingConfig.Pooling;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Pads packed sequences of different lengths, so that operators need not run once for each length:
 * sequences of similar lengths form a bucket, which is padded to its longest sequence and then to a
 * multiple of {@value #STEP} tokens. The first step adds at most a quarter. Valid until its manager
 * closes.
 *
 * <p>Padding repeats a token of its own sequence. So NaN in a sequence stays there: 0 times NaN is
 * NaN.
 */
final class PaddedSequences {

    /** The most padded tokens of a bucket, by its tokens, before lengths become multiples. */
    private static final double MOST = 1.25;

    /** The rows of a mask are multiples of this, or libtorch's attention kernel copies it. */
    private static final long STEP = 8;

    /**
     * Sequences that are padded to one length.
     *
     * @param tokens the packed index of each token, of shape (sequences * length); padding has that
     *     of its sequence's last token
     * @param mask 0 for tokens, -infinity for padding, of shape (sequences, 1, 1, length)
     */
    private record Bucket(List<SequenceEncoder.Group> groups, NDArray tokens, NDArray mask) {

        long sequences() {
            return tokens.size() / length();
        }

        long length() {
            return mask.getShape().get(3);
        }
    }

    private final NDManager manager;
    private final List<Bucket> buckets = new ArrayList<>();
    private final NDArray places; // the index of each packed token among those of all buckets

    /**
     * @param type the mask's type
     * @param groups of ascending lengths
     */
    PaddedSequences(NDManager manager, ScalarType type, List<SequenceEncoder.Group> groups) {
        this.manager = manager;
        for (int end = groups.size(); end > 0; ) {
            int begin = end;
            long sequences = 0;
            long tokens = 0;
            do {
                begin--;
                sequences += groups.get(begin).sequences();
                tokens += groups.get(begin).tokens();
            } while (begin > 0
                    && (sequences + groups.get(begin - 1).sequences())
                                    * groups.get(end - 1).length()
                            <= MOST * (tokens + groups.get(begin - 1).tokens()));
            buckets.add(bucket(type, groups.subList(begin, end)));
            end = begin;
        }
        Collections.reverse(buckets);
        SequenceEncoder.Group last = groups.get(groups.size() - 1);
        places = manager.create(places(Math.toIntExact(last.first() + last.tokens())));
    }

    private Bucket bucket(ScalarType type, List<SequenceEncoder.Group> groups) {
        long longest = groups.get(groups.size() - 1).length();
        int length = Math.toIntExact((longest + STEP - 1) / STEP * STEP);
        int sequences =
                Math.toIntExact(groups.stream().mapToLong(SequenceEncoder.Group::sequences).sum());
        long[] tokens = new long[Math.multiplyExact(sequences, length)];
        float[] mask = new float[tokens.length];
        Arrays.fill(mask, Float.NEGATIVE_INFINITY);
        int row = 0;
        for (SequenceEncoder.Group group : groups) {
            for (long first : group.starts().toArray()) {
                for (int i = 0; i < length; i++) {
                    tokens[row * length + i] = first + Math.min(i, group.length() - 1);
                }
                Arrays.fill(mask, row * length, row * length + (int) group.length(), 0);
                row++;
            }
        }
        try (NDArray float32 = manager.create(mask, new Shape(sequences, 1, 1, length))) {
            return new Bucket(groups, manager.create(tokens), Torch.cast(float32, type));
        }
    }

    private long[] places(int count) {
        long[] places = new long[count];
        int next = 0;
        long row = 0;
        for (Bucket bucket : buckets) {
            for (SequenceEncoder.Group group : bucket.groups) {
                for (int i = 0; i < group.tokens(); i++) {
                    long inGroup = i / group.length() * bucket.length() + i % group.length();
                    places[next++] = row + inGroup;
                }
                row += group.sequences() * bucket.length();
            }
        }
        return places;
    }

    /** {@return the number of tokens with padding} */
    long paddedTokens() {
        return buckets.stream().mapToLong(bucket -> bucket.tokens.size()).sum();
    }

    /**
     * Computes attention of all tokens of a sequence to each other.
     *
     * @param queriesKeysValues of shape (tokens, 3, heads, head size)
     * @return the heads' results, of shape (tokens, heads * head size)
     */
    NDArray attend(NDArray queriesKeysValues) {
        Shape shape = queriesKeysValues.getShape();
        NDArray packed = queriesKeysValues.reshape(shape.get(0), -1);
        NDArray padded =
                forEachBucket(
                        packed,
                        (bucket, rows) ->
                                PackedEncoder.attend(
                                        rows.reshape(-1, 3, shape.get(2), shape.get(3)),
                                        bucket.length(),
                                        (q, k, v) -> Torch.attention(q, k, v, bucket.mask)));
        return rows(padded, places);
    }

    /**
     * Reduces the vectors of tokens, in float32, to one of each sequence.
     *
     * @param pooling a mean, the sum divided by the root of the length, or the maximum
     */
    NDArray pool(NDArray vectors, Pooling pooling) {
        long size = vectors.getShape().get(1);
        return forEachBucket(
                vectors,
                (bucket, rows) -> {
                    NDArray padded = rows.reshape(bucket.sequences(), bucket.length(), size);
                    return pooling == Pooling.MAX
                            ? padded.max(new int[] {1})
                            : weights(bucket, pooling).matMul(padded).reshape(-1, size);
                });
    }

    /** Returns the weight of each token in its sequence's vector; 0 for padding. */
    private NDArray weights(Bucket bucket, Pooling pooling) {
        int length = Math.toIntExact(bucket.length());
        float[] weights = new float[Math.toIntExact(bucket.tokens.size())];
        int row = 0;
        for (SequenceEncoder.Group group : bucket.groups) {
            double count = group.length();
            double divisor =
                    switch (pooling) {
                        case MEAN -> count;
                        case MEAN_SQRT -> Math.sqrt(count);
                        case WEIGHTED_MEAN -> count * (count + 1) / 2;
                        default -> throw new IllegalArgumentException(pooling + " is no sum");
                    };
            for (int i = 0; i < group.sequences(); i++, row++) {
                for (int token = 0; token < count; token++) {
                    double share = pooling == Pooling.WEIGHTED_MEAN ? token + 1 : 1;
                    weights[row * length + token] = (float) (share / divisor);
                }
            }
        }
        return manager.create(weights, new Shape(bucket.sequences(), 1, length));
    }

    /** Applies a function to the padded rows of each bucket, and concatenates the results. */
    private NDArray forEachBucket(NDArray packed, BiFunction<Bucket, NDArray, NDArray> function) {
        NDList results = new NDList();
        for (Bucket bucket : buckets) {
            results.add(function.apply(bucket, rows(packed, bucket.tokens)));
        }
        return results.size() == 1 ? results.get(0) : NDArrays.concat(results, 0);
    }

    /** Returns rows of a layer's matrix, in its manager: the indices outlive the layer. */
    private static NDArray rows(NDArray matrix, NDArray indices) {
        NDArray rows = SequenceEncoder.rows(matrix, indices);
        rows.attach(matrix.getManager());
        return rows;
    }
}
