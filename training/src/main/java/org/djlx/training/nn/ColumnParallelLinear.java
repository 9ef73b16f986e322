// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import java.util.List;

/**
 * A linear layer whose outputs are divided among the W ranks. It enters a parallel region.
 *
 * <ul>
 *   <li>Input: (tokens, …, in). With sequence parallelism, only this rank's tokens.
 *   <li>Output: (tokens, …, units / W), for all tokens.
 *   <li>Full parameters: {@code weight} of shape (units, in) and {@code bias} of shape (units), as
 *       in {@link ai.djl.nn.core.Linear}.
 *   <li>The last layer of a language model may share the weight of the embedding, and its units
 *       need not be divisible by W: see {@link Builder#optTied} and {@link Builder#optPadded}.
 * </ul>
 */
public final class ColumnParallelLinear extends ShardedBlock {

    private final long units;
    private final ParallelEmbedding embedding; // shares its weight with this layer; null if untied
    private final Parameter weight; // null if it is the embedding's
    private final Parameter bias; // null if there is none

    private ColumnParallelLinear(Builder builder) {
        super(builder);
        embedding = builder.embedding;
        units = embedding == null ? builder.units : embedding.vocabulary();
        if (embedding != null && embedding.group() != group()) {
            throw new IllegalArgumentException(
                    "ColumnParallelLinear: the embedding must be of the same group, %s, not %s"
                            .formatted(group().name(), embedding.group().name()));
        }
        boolean padded = builder.padded || embedding != null;
        if (!padded) {
            checkDivisible("the units", units);
        }
        weight =
                embedding != null
                        ? null
                        : add(
                                "weight",
                                Parameter.Type.WEIGHT,
                                Division.ROWS_TRANSPOSED.withPadding(padded));
        bias =
                builder.bias
                        ? add("bias", Parameter.Type.BIAS, Division.ROWS.withPadding(padded))
                        : null;
    }

    public static Builder builder() {
        return new Builder();
    }

    @Override
    protected void prepare(Shape[] inputShapes) {
        if (weight != null) {
            setFullShape(weight, units, inputShapes[0].getLastDimension());
        }
        if (bias != null) {
            setFullShape(bias, units);
        }
    }

    @Override
    NDArray forward(ParameterStore store, NDArray x, boolean training) {
        NDArray w =
                embedding == null
                        ? value(store, weight, x, training)
                        : with(x, embedding.weight(store, x, training).transpose());
        NDArray y = intoRegion(x, List.of(w)).get(0);
        return bias == null ? y : y.add(value(store, bias, x, training));
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        long own = (units + group().worldSize() - 1) / group().worldSize();
        return new Shape[] {outputShape(inputShapes[0], own, true, false)};
    }

    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private long units;
        private boolean bias = true;
        private boolean padded;
        private ParallelEmbedding embedding;

        private Builder() {}

        /**
         * Sets the number of outputs of all ranks together, divisible by the world size unless
         * {@linkplain #optPadded padded}.
         */
        public Builder setUnits(long units) {
            this.units = units;
            return this;
        }

        /** Sets whether there is a bias; default true. */
        public Builder optBias(boolean bias) {
            this.bias = bias;
            return this;
        }

        /**
         * Sets whether the number of units is rounded up to a multiple of the world size; default
         * false. The last ranks then have additional units with zero weights and outputs, which
         * {@link VocabularyParallelCrossEntropy} ignores.
         */
        public Builder optPadded(boolean padded) {
            this.padded = padded;
            return this;
        }

        /**
         * Shares the weight of an embedding of the same group and model. The units are the
         * embedding's vocabulary, with the same padding.
         */
        public Builder optTied(ParallelEmbedding embedding) {
            this.embedding = embedding;
            return this;
        }

        public ColumnParallelLinear build() {
            if (embedding != null && units != 0 && units != embedding.vocabulary()) {
                throw new IllegalArgumentException(
                        String.format(
                                "ColumnParallelLinear: the units must be %d, the vocabulary of the"
                                        + " tied embedding, not %d",
                                embedding.vocabulary(), units));
            }
            if (units < 1 && embedding == null) {
                throw new IllegalArgumentException(
                        "ColumnParallelLinear: the units must be 1 or more, not " + units);
            }
            return new ColumnParallelLinear(this);
        }
    }
}
