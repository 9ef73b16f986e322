// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import java.util.function.Consumer;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.nn.BlockOperators.Residual;

/**
 * A Llama layer: {@code h = x + attention(norm(x))}, then {@code h + mlp(norm(h))}, of {@link
 * ParallelSelfAttention}, {@link ParallelMlp} and {@link RmsNorm}.
 *
 * <p>Input and output: (batch, sequence, size) or (tokens, size). With sequence parallelism, only
 * this rank's part of the first dimension.
 *
 * <p>A language model:
 *
 * <pre>{@code
 * ParallelEmbedding embedding = ParallelEmbedding.builder().setGroup(group)
 *         .setVocabulary(vocabulary).setSize(size).build();
 * Block model = new SequentialBlock()
 *         .add(embedding)
 *         .add(ParallelTransformerBlock.builder().setGroup(group)
 *                 .setHeads(8).setHeadSize(size / 8).setHidden(4 * size)
 *                 .optRotary(RotaryEmbedding.builder().setHeadSize(size / 8).build()).build())
 *         .add(RmsNorm.builder().setGroup(group).build())
 *         .add(ColumnParallelLinear.builder().setGroup(group)
 *                 .optTied(embedding).optBias(false).build());
 * Loss loss = VocabularyParallelCrossEntropy.builder().setGroup(group)
 *         .setVocabulary(vocabulary).build();
 * }</pre>
 *
 * <p>The child blocks {@code attentionNorm}, {@code attention}, {@code mlpNorm} and {@code mlp}
 * hold the parameters.
 */
public final class ParallelTransformerBlock extends AbstractBlock {

    private static final byte VERSION = 1;

    private final RmsNorm attentionNorm;
    private final ParallelSelfAttention attention;
    private final RmsNorm mlpNorm;
    private final ParallelMlp mlp;

    private ParallelTransformerBlock(Builder builder) {
        super(VERSION);
        attentionNorm = addChildBlock("attentionNorm", builder.norm());
        attention = addChildBlock("attention", builder.shared(builder.attention).build());
        mlpNorm = addChildBlock("mlpNorm", builder.norm());
        mlp = addChildBlock("mlp", builder.shared(builder.mlp).build());
    }

    /** {@return a new builder} */
    public static Builder builder() {
        return new Builder();
    }

    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        for (Block child : children.values()) {
            child.initialize(manager, dataType, inputShapes);
        }
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray x = inputs.singletonOrThrow();
        // Outside of training, the additions here need no gradients either.
        return new NDList(
                training
                        ? forward(store, x, true)
                        : NoGradient.get(() -> forward(store, x, false)));
    }

    private NDArray forward(ParameterStore store, NDArray x, boolean training) {
        Residual first = attentionNorm.residual(store, x, null, training);
        NDArray attended = attention.forward(store, first.norm(), training);
        Residual second = mlpNorm.residual(store, first.rows(), attended, training);
        NDArray last = mlp.forward(store, second.norm(), training);
        return BlockOperators.added(second.rows(), last);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    /** Builds a {@link ParallelTransformerBlock}. */
    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private final ParallelSelfAttention.Builder attention = ParallelSelfAttention.builder();
        private final ParallelMlp.Builder mlp = ParallelMlp.builder();
        private Float epsilon;

        private Builder() {}

        private RmsNorm norm() {
            RmsNorm.Builder norm = shared(RmsNorm.builder());
            return (epsilon == null ? norm : norm.optEpsilon(epsilon)).build();
        }

        /**
         * Sets the number of heads.
         *
         * @param heads as {@link ParallelSelfAttention.Builder#setHeads}
         */
        public Builder setHeads(int heads) {
            attention.setHeads(heads);
            return this;
        }

        /**
         * Sets the size of a head.
         *
         * @param headSize as {@link ParallelSelfAttention.Builder#setHeadSize}
         */
        public Builder setHeadSize(int headSize) {
            attention.setHeadSize(headSize);
            return this;
        }

        /**
         * Sets the number of hidden values of the MLP.
         *
         * @param hidden as {@link ParallelMlp.Builder#setHidden}
         */
        public Builder setHidden(long hidden) {
            mlp.setHidden(hidden);
            return this;
        }

        /**
         * Sets the number of key and value heads.
         *
         * @param keyValueHeads as {@link ParallelSelfAttention.Builder#optKeyValueHeads}
         */
        public Builder optKeyValueHeads(int keyValueHeads) {
            attention.optKeyValueHeads(keyValueHeads);
            return this;
        }

        /**
         * Sets the rotary position embedding.
         *
         * @param rotary as {@link ParallelSelfAttention.Builder#optRotary}
         */
        public Builder optRotary(RotaryEmbedding rotary) {
            attention.optRotary(rotary);
            return this;
        }

        /**
         * Sets the length of each sequence in an input of shape (tokens, size).
         *
         * @param sequenceLength as {@link ParallelSelfAttention.Builder#optSequenceLength}
         */
        public Builder optSequenceLength(long sequenceLength) {
            attention.optSequenceLength(sequenceLength);
            return this;
        }

        /**
         * Sets further options of the attention, such as {@link
         * ParallelSelfAttention.Builder#optInputBias}.
         *
         * @param options sets them; called at once
         */
        public Builder optAttention(Consumer<ParallelSelfAttention.Builder> options) {
            options.accept(attention);
            return this;
        }

        /**
         * Adds low-rank adapters. The weights themselves are trained too unless they are frozen.
         *
         * @param lora the adapters; null for none, the default
         */
        public Builder optLora(Lora lora) {
            attention.optLora(lora);
            mlp.optLora(lora);
            return this;
        }

        /**
         * Sets the number added to the mean of squares in both norms.
         *
         * @param epsilon as {@link RmsNorm.Builder#optEpsilon}
         */
        public Builder optEpsilon(float epsilon) {
            this.epsilon = epsilon;
            return this;
        }

        /**
         * {@return the block}
         *
         * @throws IllegalArgumentException if the group, the heads, their size or the hidden values
         *     are missing or invalid
         */
        public ParallelTransformerBlock build() {
            return new ParallelTransformerBlock(this);
        }
    }
}
