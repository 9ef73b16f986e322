/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import java.util.List;

/**
 * A linear layer whose outputs are divided among the ranks: the way into a parallel region. It
 * takes (tokens, …, in), with this rank's tokens alone if sequence-parallel, and returns (tokens,
 * …, units / W) for all tokens. Its full weight is (units, in) and its full bias (units), as those
 * of {@link ai.djl.nn.core.Linear}.
 */
public final class ColumnParallelLinear extends ShardedBlock {

    private final long units;
    private final Parameter weight;
    private final Parameter bias; // null if there is none

    private ColumnParallelLinear(Builder builder) {
        super(builder);
        units = builder.units;
        checkDivisible("the units", units);
        weight = add("weight", Parameter.Type.WEIGHT, 0, true);
        bias = builder.bias ? add("bias", Parameter.Type.BIAS, 0, false) : null;
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    @Override
    protected void prepare(Shape[] inputShapes) {
        setFullShape(weight, units, inputShapes[0].getLastDimension());
        if (bias != null) {
            setFullShape(bias, units);
        }
    }

    @Override
    NDArray forward(ParameterStore store, NDArray x, boolean training) {
        NDArray w = store.getValue(weight, x.getDevice(), training);
        NDArray y = intoRegion(x, List.of(w)).get(0);
        return bias == null ? y : y.add(store.getValue(bias, x.getDevice(), training));
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {outputShape(inputShapes[0], units / group().worldSize(), true, false)};
    }

    /** Builds a {@link ColumnParallelLinear}. */
    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private long units;
        private boolean bias = true;

        private Builder() {}

        @Override
        Builder self() {
            return this;
        }

        /**
         * Sets the number of outputs.
         *
         * @param units those of all ranks, which the world size divides
         * @return this builder
         */
        public Builder setUnits(long units) {
            this.units = units;
            return this;
        }

        /**
         * Sets whether there is a bias.
         *
         * @param bias whether there is, which is so unless set
         * @return this builder
         */
        public Builder optBias(boolean bias) {
            this.bias = bias;
            return this;
        }

        /**
         * Builds the block.
         *
         * @return the block
         * @throws IllegalArgumentException if the group or the units are missing or wrong
         */
        public ColumnParallelLinear build() {
            if (units < 1) {
                throw new IllegalArgumentException(
                        "ColumnParallelLinear: the units must be 1 or more, not " + units);
            }
            return new ColumnParallelLinear(this);
        }
    }
}
