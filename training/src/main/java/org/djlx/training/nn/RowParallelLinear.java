// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;

/**
 * A linear layer whose inputs are divided among the W ranks. It leaves a parallel region.
 *
 * <ul>
 *   <li>Input: (tokens, …, in / W), for all tokens.
 *   <li>Output: (tokens, …, units). With sequence parallelism, only this rank's tokens.
 *   <li>Full parameters: {@code weight} of shape (units, in) and {@code bias} of shape (units), as
 *       in {@link ai.djl.nn.core.Linear}. The bias is not divided.
 * </ul>
 */
public final class RowParallelLinear extends ShardedBlock {

    private final long units;
    private final Projection linear;

    private RowParallelLinear(Builder builder) {
        super(builder);
        units = builder.units;
        String bias = builder.bias ? "bias" : null;
        linear = new Projection("weight", bias, Division.COLUMNS_TRANSPOSED, null);
    }

    public static Builder builder() {
        return new Builder();
    }

    @Override
    protected void prepare(Shape[] inputShapes) {
        linear.setFullShape(units, inputShapes[0].getLastDimension() * group().worldSize());
    }

    @Override
    NDArray forward(ParameterStore store, NDArray x, boolean training) {
        return leaveRegion(store, x, training, linear);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {outputShape(inputShapes[0], units, false, true)};
    }

    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private long units;
        private boolean bias = true;

        private Builder() {}

        /** Sets the number of outputs. */
        public Builder setUnits(long units) {
            this.units = units;
            return this;
        }

        /** Sets whether there is a bias; default true. */
        public Builder optBias(boolean bias) {
            this.bias = bias;
            return this;
        }

        public RowParallelLinear build() {
            if (units < 1) {
                throw new IllegalArgumentException(
                        "RowParallelLinear: the units must be 1 or more, not " + units);
            }
            return new RowParallelLinear(this);
        }
    }
}
