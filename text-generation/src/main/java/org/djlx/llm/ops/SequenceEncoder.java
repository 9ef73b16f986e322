// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.LongStream;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.model.EmbeddingConfig.Pooling;
import org.djlx.llm.model.EncoderConfig;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A model that computes a vector of each token of a text, on one device. Texts of a batch are
 * packed: their tokens follow each other, without padding. Thread-safe; use it with gradients off.
 */
public abstract class SequenceEncoder implements AutoCloseable {

    /** Adjacent sequences of one length, which attention computes at once. */
    record Group(long first, long sequences, long length) {

        long tokens() {
            return sequences * length;
        }

        /** Returns the first token of each sequence. */
        LongStream starts() {
            return LongStream.range(0, sequences).map(i -> first + i * length);
        }
    }

    public abstract int hiddenSize();

    public abstract int vocabularySize();

    /** {@return the maximum number of tokens of a sequence} */
    public abstract int maxLength();

    public abstract Device device();

    /**
     * Computes the vectors of all tokens, of shape (tokens, hidden size).
     *
     * @param manager owns the result and all activations
     */
    abstract NDArray encode(NDManager manager, List<int[]> sequences, List<Group> groups);

    /**
     * Computes one vector of each sequence.
     *
     * @param sequences the tokens of each, one or more; sorted by length, so that those of the same
     *     length are computed at once
     * @return the vectors, not normalised, in float32
     */
    public float[][] encode(List<int[]> sequences, Pooling pooling) {
        List<Group> groups = groups(sequences);
        try (NDManager manager = NDManager.newBaseManager(device())) {
            NDArray hidden = encode(manager, sequences, groups);
            NDList pooled = new NDList();
            for (Group group : groups) {
                NDArray rows = Torch.narrow(hidden, 0, group.first, group.tokens());
                Shape shape = new Shape(group.sequences, group.length, hiddenSize());
                pooled.add(pool(Torch.cast(rows, ScalarType.FLOAT32).reshape(shape), pooling));
            }
            NDArray all = pooled.size() == 1 ? pooled.get(0) : NDArrays.concat(pooled, 0);
            float[] values = all.toFloatArray();
            float[][] vectors = new float[sequences.size()][hiddenSize()];
            for (int i = 0; i < vectors.length; i++) {
                System.arraycopy(values, i * hiddenSize(), vectors[i], 0, hiddenSize());
            }
            return vectors;
        }
    }

    private static List<Group> groups(List<int[]> sequences) {
        List<Group> groups = new ArrayList<>();
        long first = 0;
        for (int i = 0; i < sequences.size(); ) {
            int length = sequences.get(i).length;
            int begin = i;
            while (i < sequences.size() && sequences.get(i).length == length) {
                i++;
            }
            Group group = new Group(first, i - begin, length);
            groups.add(group);
            first += group.tokens();
        }
        return groups;
    }

    /** Reduces (sequences, tokens, size) to (sequences, size). */
    private static NDArray pool(NDArray x, Pooling pooling) {
        long tokens = x.getShape().get(1);
        int[] axis = {1};
        return switch (pooling) {
            case CLS -> x.get(":, 0");
            case LAST_TOKEN -> x.get(":, -1");
            case MAX -> x.max(axis);
            case MEAN -> x.mean(axis);
            case MEAN_SQRT -> x.sum(axis).div((float) Math.sqrt(tokens));
            case WEIGHTED_MEAN -> {
                NDArray weights = x.getManager().arange(1f, tokens + 1).reshape(1, tokens, 1);
                yield x.mul(weights).sum(axis).div((float) (tokens * (tokens + 1.0) / 2));
            }
        };
    }

    @Override
    public abstract void close();

    /** Returns the tokens of all sequences. */
    static long[] tokens(List<int[]> sequences) {
        return sequences.stream().flatMapToInt(Arrays::stream).asLongStream().toArray();
    }

    /** Returns the position of each token in its sequence, counted from {@code first}. */
    static long[] positions(List<int[]> sequences, int first) {
        return sequences.stream()
                .flatMapToLong(each -> LongStream.range(0, each.length))
                .map(position -> position + first)
                .toArray();
    }

    /**
     * Loads an encoder, or a language model as an encoder. The caller closes it.
     *
     * @param type the type of weights and computation; null for that of {@code config.json}, but
     *     float32 for encoders on a CPU
     * @throws IllegalArgumentException if files do not fit each other; the message names the tensor
     */
    public static SequenceEncoder load(
            Path directory, TensorFiles files, Device device, DataType type) throws IOException {
        if (!EncoderConfig.isEncoder(directory)) {
            return DecoderEncoder.read(directory, files, device, type);
        }
        DataType chosen = type == null && !device.isGpu() ? DataType.FLOAT32 : type;
        EncoderConfig config = EncoderConfig.read(directory, chosen);
        EncoderWeights weights = new EncoderWeights(directory, files, config.sizes(), device);
        try {
            SequenceEncoder encoder =
                    config instanceof EncoderConfig.Bert bert
                            ? new BertEncoder(bert, weights)
                            : new ModernBertEncoder((EncoderConfig.ModernBert) config, weights);
            weights.checkAllRead();
            return encoder;
        } catch (Throwable e) {
            weights.close();
            throw e;
        }
    }
}
