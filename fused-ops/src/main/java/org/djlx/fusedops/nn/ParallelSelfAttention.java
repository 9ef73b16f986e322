// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import java.util.ArrayList;
import java.util.List;
import org.djlx.fusedops.nn.RotaryEmbedding.Table;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Causal self-attention whose heads are divided among the ranks; {@link Torch#attention} documents
 * the computation.
 *
 * <ul>
 *   <li>Input and output: (batch, sequence, size); or (tokens, size), which is one sequence, or
 *       several of a {@linkplain Builder#optSequenceLength given length}. With sequence
 *       parallelism, only this rank's part of the first dimension.
 *   <li>With sequence parallelism query, key and value share one all-gather + matmul, and the
 *       output is a matmul + reduce-scatter.
 *   <li>Full parameters: {@code query} of shape (heads × head size, size), {@code key} and {@code
 *       value} of shape (key and value heads × head size, size), {@code output} of shape (size,
 *       heads × head size), as in checkpoints of Llama. There is no bias.
 *   <li>Several query heads may share a key and value head (Ainslie et al., 2023, <a
 *       href="https://arxiv.org/abs/2305.13245">arXiv:2305.13245</a>). If there are fewer key and
 *       value heads than ranks, neighbouring ranks hold the same head.
 * </ul>
 */
public final class ParallelSelfAttention extends ShardedBlock {

    private final int heads;
    private final int keyValueHeads;
    private final int headSize;
    private final RotaryEmbedding rotary; // null for none
    private final long sequenceLength; // 0 if the shape of the input decides
    private final Parameter query;
    private final Parameter key;
    private final Parameter value;
    private final Parameter output;
    private Table table; // null before the first use; in the manager of the parameters
    private int tablePositions;
    private ScalarType tableType;

    private ParallelSelfAttention(Builder builder) {
        super(builder);
        heads = builder.heads;
        keyValueHeads = builder.keyValueHeads == 0 ? heads : builder.keyValueHeads;
        headSize = builder.headSize;
        rotary = builder.rotary;
        sequenceLength = builder.sequenceLength;
        int ranks = group().worldSize();
        checkDivisible("the heads", heads);
        if (ranks % keyValueHeads != 0) {
            checkDivisible("the key and value heads", keyValueHeads);
        }
        Division shared = Division.ROWS_TRANSPOSED.into(Math.min(ranks, keyValueHeads));
        query = add("query", Parameter.Type.WEIGHT, Division.ROWS_TRANSPOSED);
        key = add("key", Parameter.Type.WEIGHT, shared);
        value = add("value", Parameter.Type.WEIGHT, shared);
        output = add("output", Parameter.Type.WEIGHT, Division.COLUMNS_TRANSPOSED);
    }

    /** {@return a new builder} */
    public static Builder builder() {
        return new Builder();
    }

    @Override
    protected void prepare(Shape[] inputShapes) {
        long size = inputShapes[0].getLastDimension();
        setFullShape(query, (long) heads * headSize, size);
        setFullShape(key, (long) keyValueHeads * headSize, size);
        setFullShape(value, (long) keyValueHeads * headSize, size);
        setFullShape(output, size, (long) heads * headSize);
    }

    @Override
    NDArray forward(ParameterStore store, NDArray x, boolean training) {
        long sequence = sequence(x.getShape());
        List<NDArray> weights = values(store, List.of(query, key, value), x, training);
        List<NDArray> in = intoRegion(x, weights);
        List<NDArray> parts = in.size() > 1 ? separate(in, sequence) : divided(in.get(0), sequence);
        NDArray queries = inFront(parts.get(0));
        NDArray attended =
                Torch.attention(queries, inFront(parts.get(1)), inFront(parts.get(2)), true);
        Shape rows = in.get(0).getShape();
        long size = (long) heads / group().worldSize() * headSize;
        NDArray joined = inFront(attended).reshape(rows.slice(0, rows.dimension() - 1).add(size));
        return outOfRegion(joined, value(store, output, x, training));
    }

    /** Returns the sequence length of an input. */
    private long sequence(Shape shape) {
        int dimensions = shape.dimension();
        if (dimensions == 3 && (sequenceLength == 0 || sequenceLength == shape.get(1))) {
            return shape.get(1);
        }
        long tokens = shape.get(0) * (isSequenceParallel() ? group().worldSize() : 1);
        if (dimensions == 2 && (sequenceLength == 0 || tokens % sequenceLength == 0)) {
            return sequenceLength == 0 ? tokens : sequenceLength;
        }
        throw new IllegalArgumentException(
                String.format(
                        "ParallelSelfAttention: the input must be (batch, sequence, size) or"
                                + " (tokens, size)%s, not %s on rank %d of %s%s",
                        sequenceLength == 0 ? "" : " of sequences of " + sequenceLength + " tokens",
                        shape,
                        group().rank(),
                        group().name(),
                        isSequenceParallel() ? ", which is part of the first dimension" : ""));
    }

    /**
     * Returns queries, keys and values as (batch, sequence, heads, head size), from one array each.
     */
    private List<NDArray> separate(List<NDArray> in, long sequence) {
        BlockOperators operators = BlockOperators.of(group());
        List<NDArray> parts = new ArrayList<>();
        for (NDArray each : in) {
            NDArray x = heads(each, sequence);
            boolean turned = rotary != null && parts.size() < 2;
            parts.add(turned ? operators.rotated(rotary, x, table(x, (int) sequence)) : x);
        }
        return parts;
    }

    /** Returns queries, keys and values from one array that holds them side by side. */
    private List<NDArray> divided(NDArray in, long sequence) {
        NDArray x = heads(in, sequence);
        long shared = Math.max(1, keyValueHeads / group().worldSize());
        List<Long> counts = List.of((long) heads / group().worldSize(), shared, shared);
        return rotary == null
                ? BlockOperators.split(x, counts, 2)
                : BlockOperators.of(group()).divided(rotary, x, counts, table(x, (int) sequence));
    }

    /** Returns (batch, sequence, heads, head size). */
    private NDArray heads(NDArray x, long sequence) {
        return x.reshape(-1, sequence, x.getShape().getLastDimension() / headSize, headSize);
    }

    private Table table(NDArray x, int positions) {
        ScalarType type = Torch.scalarType(x);
        if (table == null || tablePositions != positions || tableType != type) {
            if (table != null) {
                table.close();
            }
            try (NDManager manager = x.getManager().newSubManager(x.getDevice())) {
                table = rotary.table(manager, 0, positions, type);
                table.cosines().attach(query.getArray().getManager());
                table.sines().attach(query.getArray().getManager());
            }
            tablePositions = positions;
            tableType = type;
        }
        return table;
    }

    /** Changes (batch, sequence, heads, …) to (batch, heads, sequence, …), and back. */
    private static NDArray inFront(NDArray x) {
        return x.transpose(0, 2, 1, 3);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    /** Builds a {@link ParallelSelfAttention}. */
    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private int heads;
        private int keyValueHeads;
        private int headSize;
        private RotaryEmbedding rotary;
        private long sequenceLength;

        private Builder() {}

        /**
         * Sets the number of heads.
         *
         * @param heads the number for all ranks together, divisible by the world size
         * @return this builder
         */
        public Builder setHeads(int heads) {
            this.heads = heads;
            return this;
        }

        /**
         * Sets the size of a head.
         *
         * @param headSize the number of values of a head, usually the size of the input divided by
         *     the heads
         * @return this builder
         */
        public Builder setHeadSize(int headSize) {
            this.headSize = headSize;
            return this;
        }

        /**
         * Sets the number of key and value heads.
         *
         * @param keyValueHeads the number, which divides the number of heads. It is divisible by
         *     the world size, or divides the world size. The number of heads unless set
         * @return this builder
         */
        public Builder optKeyValueHeads(int keyValueHeads) {
            this.keyValueHeads = keyValueHeads;
            return this;
        }

        /**
         * Sets the rotary position embedding of queries and keys. Positions of each sequence start
         * at 0.
         *
         * @param rotary the embedding, for heads of this size; none unless set
         * @return this builder
         */
        public Builder optRotary(RotaryEmbedding rotary) {
            this.rotary = rotary;
            return this;
        }

        /**
         * Sets the length of each sequence in an input of shape (tokens, size).
         *
         * @param sequenceLength the number of tokens of each sequence; unless set, all tokens are
         *     one sequence
         * @return this builder
         */
        public Builder optSequenceLength(long sequenceLength) {
            this.sequenceLength = sequenceLength;
            return this;
        }

        /**
         * {@return the block}
         *
         * @throws IllegalArgumentException if the group, the heads or their size are missing or
         *     wrong
         */
        public ParallelSelfAttention build() {
            if (heads < 1
                    || headSize < 1
                    || keyValueHeads < 0
                    || keyValueHeads > 0 && heads % keyValueHeads != 0) {
                throw new IllegalArgumentException(
                        String.format(
                                "ParallelSelfAttention: the number of heads, %d, and their size,"
                                        + " %d, must be 1 or more, and the number of key and value"
                                        + " heads, %d, must divide the number of heads",
                                heads, headSize, keyValueHeads));
            }
            if (sequenceLength < 0) {
                throw new IllegalArgumentException(
                        "ParallelSelfAttention: the sequence length must be 0 (for one sequence) or"
                                + " more, not "
                                + sequenceLength);
            }
            if (rotary != null && rotary.headSize() != headSize) {
                throw new IllegalArgumentException(
                        String.format(
                                "ParallelSelfAttention: the rotary embedding is for heads of size"
                                        + " %d, not %d",
                                rotary.headSize(), headSize));
            }
            return new ParallelSelfAttention(this);
        }
    }
}
