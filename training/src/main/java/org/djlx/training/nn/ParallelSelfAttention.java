// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.nn.RotaryEmbedding.Table;

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
 *       heads × head size), as in checkpoints of Llama. There is no bias unless {@linkplain
 *       Builder#optInputBias set}.
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
    private final long window; // 0 for all tokens
    private final Projection query;
    private final Projection key;
    private final Projection value;
    private final Projection output;
    private final Parameter queryNorm; // null if there is none
    private final Parameter keyNorm;
    private final float epsilon; // of the norms
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
        window = builder.window;
        query = in("query", Division.ROWS_TRANSPOSED, builder);
        key = in("key", shared, builder);
        value = in("value", shared, builder);
        output = new Projection("output", null, Division.COLUMNS_TRANSPOSED, builder.lora);
        boolean norms = builder.epsilon != null;
        epsilon = norms ? builder.epsilon : 0;
        queryNorm = norms ? add("queryNorm", Parameter.Type.GAMMA, Division.SHARED) : null;
        keyNorm = norms ? add("keyNorm", Parameter.Type.GAMMA, Division.SHARED) : null;
    }

    public static Builder builder() {
        return new Builder();
    }

    private Projection in(String name, Division division, Builder builder) {
        return new Projection(name, builder.bias ? name + "Bias" : null, division, builder.lora);
    }

    @Override
    protected void prepare(Shape[] inputShapes) {
        long size = inputShapes[0].getLastDimension();
        query.setFullShape((long) heads * headSize, size);
        key.setFullShape((long) keyValueHeads * headSize, size);
        value.setFullShape((long) keyValueHeads * headSize, size);
        output.setFullShape(size, (long) heads * headSize);
        if (queryNorm != null) {
            setFullShape(queryNorm, headSize);
            setFullShape(keyNorm, headSize);
        }
    }

    @Override
    NDArray forward(ParameterStore store, NDArray x, boolean training) {
        long sequence = sequence(x.getShape());
        List<NDArray> in = enterRegion(store, x, training, List.of(query, key, value));
        List<NDArray> parts = heads(store, in, sequence, training);
        NDArray queries = inFront(parts.get(0));
        NDArray keys = inFront(parts.get(1));
        NDArray values = inFront(parts.get(2));
        NDArray attended =
                window > 0 && window < sequence
                        ? BlockOperators.windowed(queries, keys, values, window)
                        : Torch.attention(queries, keys, values, true);
        Shape rows = in.get(0).getShape();
        long size = (long) heads / group().worldSize() * headSize;
        NDArray joined = inFront(attended).reshape(rows.slice(0, rows.dimension() - 1).add(size));
        return leaveRegion(store, joined, training, output);
    }

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
     * Returns queries, keys and values as (batch, sequence, heads, head size), normalised and
     * rotated; {@code in} may hold them side by side in one array.
     */
    private List<NDArray> heads(
            ParameterStore store, List<NDArray> in, long sequence, boolean training) {
        BlockOperators operators = BlockOperators.of(group());
        List<NDArray> parts = in.stream().map(each -> heads(each, sequence)).toList();
        NDArray first = parts.get(0);
        if (parts.size() == 1) {
            long shared = Math.max(1, keyValueHeads / group().worldSize());
            List<Long> counts = List.of((long) heads / group().worldSize(), shared, shared);
            if (queryNorm == null && rotary != null) {
                return operators.divided(rotary, first, counts, table(first, (int) sequence));
            }
            parts = BlockOperators.split(first, counts, 2);
        }
        List<NDArray> results = new ArrayList<>(parts);
        for (int i = 0; i < 2; i++) {
            NDArray each = results.get(i);
            if (queryNorm != null) {
                NDArray weight = value(store, i == 0 ? queryNorm : keyNorm, each, training);
                each = operators.normalized(each, weight, epsilon);
            }
            results.set(
                    i,
                    rotary == null
                            ? each
                            : operators.rotated(rotary, each, table(each, (int) sequence)));
        }
        return results;
    }

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
                table.cosines().attach(parameterManager());
                table.sines().attach(parameterManager());
            }
            tablePositions = positions;
            tableType = type;
        }
        return table;
    }

    private NDManager parameterManager() {
        return getParameters().valueAt(0).getArray().getManager();
    }

    /** Changes (batch, sequence, heads, …) to (batch, heads, sequence, …), and back. */
    private static NDArray inFront(NDArray x) {
        return x.transpose(0, 2, 1, 3);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private int heads;
        private int keyValueHeads;
        private int headSize;
        private RotaryEmbedding rotary;
        private long sequenceLength;
        private boolean bias;
        private Float epsilon;
        private long window;
        private Lora lora;

        private Builder() {}

        /** Sets the number of heads of all ranks together, divisible by the world size. */
        public Builder setHeads(int heads) {
            this.heads = heads;
            return this;
        }

        /**
         * Sets the number of values of a head, usually the size of the input divided by the heads.
         */
        public Builder setHeadSize(int headSize) {
            this.headSize = headSize;
            return this;
        }

        /**
         * Sets the number of key and value heads, which divides the number of heads, the default.
         * It is divisible by the world size, or divides the world size.
         */
        public Builder optKeyValueHeads(int keyValueHeads) {
            this.keyValueHeads = keyValueHeads;
            return this;
        }

        /**
         * Sets the rotary embedding of queries and keys, for heads of this size; default none.
         * Positions of each sequence start at 0.
         */
        public Builder optRotary(RotaryEmbedding rotary) {
            this.rotary = rotary;
            return this;
        }

        /**
         * Sets the tokens of each sequence in an input of shape (tokens, size); unless set, it is
         * one sequence.
         */
        public Builder optSequenceLength(long sequenceLength) {
            this.sequenceLength = sequenceLength;
            return this;
        }

        /**
         * Adds low-rank adapters; null, the default, for none. The weights are trained too unless
         * they are frozen.
         */
        public Builder optLora(Lora lora) {
            this.lora = lora;
            return this;
        }

        /**
         * Sets whether query, key and value have a bias, as in Qwen 2: {@code queryBias}, {@code
         * keyBias} and {@code valueBias}; default false.
         */
        public Builder optInputBias(boolean bias) {
            this.bias = bias;
            return this;
        }

        /**
         * Adds an RMSNorm of each head of queries and keys before the rotation, as in Qwen 3:
         * {@code queryNorm} and {@code keyNorm} of shape (head size). {@code epsilon} is added to
         * the mean of squares.
         */
        public Builder optHeadNorms(float epsilon) {
            this.epsilon = epsilon;
            return this;
        }

        /**
         * Sets how many tokens a token attends to, itself included; 0, the default, for all.
         * Sequences longer than the window hold the scores of all pairs of tokens in memory.
         */
        public Builder optWindow(long window) {
            this.window = window;
            return this;
        }

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
            if (window < 0) {
                throw new IllegalArgumentException(
                        "ParallelSelfAttention: the window must be 0 (for all tokens) or more, not "
                                + window);
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
