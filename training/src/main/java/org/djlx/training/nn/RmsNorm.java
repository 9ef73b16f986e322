// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import org.djlx.training.nn.BlockOperators.Residual;

/**
 * RMSNorm: divides by the root mean square over the last dimension and multiplies by a weight
 * (Zhang and Sennrich, 2019, <a href="https://arxiv.org/abs/1910.07467">arXiv:1910.07467</a>).
 *
 * <ul>
 *   <li>Input and output: (tokens, …, size). With sequence parallelism, only this rank's tokens.
 *   <li>Parameter: {@code weight} of shape (size), not divided.
 *   <li>16-bit types are computed in float32 and rounded once.
 * </ul>
 */
public final class RmsNorm extends ShardedBlock {

    private final float epsilon;
    private final Parameter weight;

    private RmsNorm(Builder builder) {
        super(builder);
        epsilon = builder.epsilon;
        weight = add("weight", Parameter.Type.GAMMA, Division.NONE);
    }

    public static Builder builder() {
        return new Builder();
    }

    @Override
    protected void prepare(Shape[] inputShapes) {
        setFullShape(weight, inputShapes[0].getLastDimension());
    }

    @Override
    NDArray forward(ParameterStore store, NDArray x, boolean training) {
        NDArray factors = value(store, weight, x, training);
        return BlockOperators.of(group()).normalized(x, factors, epsilon);
    }

    /**
     * Adds rows and normalises the sum, at the start of a residual connection. A null addend adds
     * nothing.
     */
    Residual residual(ParameterStore store, NDArray x, NDArray addend, boolean training) {
        NDArray factors = value(store, weight, x, training);
        return BlockOperators.of(group()).residual(x, addend, factors, epsilon);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private float epsilon = 1e-5f;

        private Builder() {}

        /** Sets the number added to the mean of squares; default 1e-5. */
        public Builder optEpsilon(float epsilon) {
            this.epsilon = epsilon;
            return this;
        }

        public RmsNorm build() {
            return new RmsNorm(this);
        }
    }
}
