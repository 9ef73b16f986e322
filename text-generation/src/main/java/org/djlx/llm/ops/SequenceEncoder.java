// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.core.Embedding;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.ToLongFunction;
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

    private final int hiddenSize;
    private final int vocabularySize;
    private final int maxLength;
    private final Device device;

    SequenceEncoder(int hiddenSize, int vocabularySize, int maxLength, Device device) {
        this.hiddenSize = hiddenSize;
        this.vocabularySize = vocabularySize;
        this.maxLength = maxLength;
        this.device = device;
    }

    public final int hiddenSize() {
        return hiddenSize;
    }

    public final int vocabularySize() {
        return vocabularySize;
    }

    /** {@return the maximum number of tokens of a sequence} */
    public final int maxLength() {
        return maxLength;
    }

    public final Device device() {
        return device;
    }

    /**
     * Computes the vectors of all tokens, of shape (tokens, hidden size).
     *
     * @param manager owns the result and all activations
     */
    abstract NDArray encode(NDManager manager, List<int[]> sequences, List<Group> groups);

    /**
     * Computes one vector of each sequence.
     *
     * @param sequences the tokens of each, one or more; shorter sequences first
     * @return the vectors, not normalised, in float32
     * @throws IllegalArgumentException if a sequence has no tokens, or fewer than the one before
     */
    public float[][] encode(List<int[]> sequences, Pooling pooling) {
        List<Group> groups = groups(sequences);
        try (NDManager manager = NDManager.newBaseManager(device)) {
            NDArray hidden = Torch.cast(encode(manager, sequences, groups), ScalarType.FLOAT32);
            float[] values = pool(manager, hidden, groups, pooling).toFloatArray();
            float[][] vectors = new float[sequences.size()][hiddenSize];
            for (int i = 0; i < vectors.length; i++) {
                System.arraycopy(values, i * hiddenSize, vectors[i], 0, hiddenSize);
            }
            return vectors;
        }
    }

    private static List<Group> groups(List<int[]> sequences) {
        List<Group> groups = new ArrayList<>();
        long first = 0;
        for (int i = 0; i < sequences.size(); ) {
            int length = sequences.get(i).length;
            int least = i == 0 ? 1 : sequences.get(i - 1).length;
            if (length < least) {
                throw new IllegalArgumentException(
                        String.format(
                                "sequence %d has %d tokens, but requires %d or more: sort sequences"
                                        + " by length",
                                i, length, least));
            }
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

    /** Reduces the vectors of tokens, of shape (tokens, size), to the shape (sequences, size). */
    private static NDArray pool(
            NDManager manager, NDArray hidden, List<Group> groups, Pooling pooling) {
        return switch (pooling) {
            case CLS -> rows(hidden, manager.create(indices(groups, each -> 0)));
            case LAST_TOKEN ->
                    rows(hidden, manager.create(indices(groups, each -> each.length() - 1)));
            case MAX, MEAN, MEAN_SQRT, WEIGHTED_MEAN ->
                    new PaddedSequences(manager, ScalarType.FLOAT32, groups).pool(hidden, pooling);
        };
    }

    /** Returns the packed index of one token of each sequence, by its index in the sequence. */
    private static long[] indices(List<Group> groups, ToLongFunction<Group> inSequence) {
        return groups.stream()
                .flatMapToLong(group -> group.starts().map(i -> i + inSequence.applyAsLong(group)))
                .toArray();
    }

    /** Returns rows of a matrix, such as a table of embeddings, in the indices' manager. */
    static NDArray rows(NDArray matrix, NDArray indices) {
        return Embedding.embedding(indices, matrix, SparseFormat.DENSE).singletonOrThrow();
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
