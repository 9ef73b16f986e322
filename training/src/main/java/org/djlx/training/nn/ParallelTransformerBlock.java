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

    /**
     * Builds the block; options are those of {@link ParallelSelfAttention.Builder}, {@link
     * ParallelMlp.Builder} and {@link RmsNorm.Builder}.
     */
    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private final ParallelSelfAttention.Builder attention = ParallelSelfAttention.builder();
        private final ParallelMlp.Builder mlp = ParallelMlp.builder();
        private Float epsilon;

        private Builder() {}

        private RmsNorm norm() {
            RmsNorm.Builder norm = shared(RmsNorm.builder());
            return (epsilon == null ? norm : norm.optEpsilon(epsilon)).build();
        }

        public Builder setHeads(int heads) {
            attention.setHeads(heads);
            return this;
        }

        public Builder setHeadSize(int headSize) {
            attention.setHeadSize(headSize);
            return this;
        }

        public Builder setHidden(long hidden) {
            mlp.setHidden(hidden);
            return this;
        }

        public Builder optKeyValueHeads(int keyValueHeads) {
            attention.optKeyValueHeads(keyValueHeads);
            return this;
        }

        public Builder optRotary(RotaryEmbedding rotary) {
            attention.optRotary(rotary);
            return this;
        }

        public Builder optSequenceLength(long sequenceLength) {
            attention.optSequenceLength(sequenceLength);
            return this;
        }

        /**
         * Sets further options of the attention, at once, such as {@link
         * ParallelSelfAttention.Builder#optInputBias}.
         */
        public Builder optAttention(Consumer<ParallelSelfAttention.Builder> options) {
            options.accept(attention);
            return this;
        }

        public Builder optLora(Lora lora) {
            attention.optLora(lora);
            mlp.optLora(lora);
            return this;
        }

        public Builder optEpsilon(float epsilon) {
            this.epsilon = epsilon;
            return this;
        }

        public ParallelTransformerBlock build() {
            return new ParallelTransformerBlock(this);
        }
    }
}
