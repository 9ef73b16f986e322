// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;
import java.util.List;

/**
 * The MLP of a transformer with SwiGLU (Shazeer, 2020, <a
 * href="https://arxiv.org/abs/2002.05202">arXiv:2002.05202</a>): {@code (silu(x gate) * (x up))
 * down}. Its hidden values are divided among the ranks.
 *
 * <ul>
 *   <li>Input and output: (tokens, …, size). With sequence parallelism, only this rank's tokens.
 *   <li>With sequence parallelism {@code gate} and {@code up} share one all-gather + matmul, and
 *       {@code down} is a matmul + reduce-scatter.
 *   <li>Full parameters: {@code gate} and {@code up} of shape (hidden, size), {@code down} of shape
 *       (size, hidden), as in checkpoints of Llama. There is no bias.
 * </ul>
 */
public final class ParallelMlp extends ShardedBlock {

    private final long hidden;
    private final Projection gate;
    private final Projection up;
    private final Projection down;

    private ParallelMlp(Builder builder) {
        super(builder);
        hidden = builder.hidden;
        checkDivisible("the hidden values", hidden);
        gate = new Projection("gate", null, Division.ROWS_TRANSPOSED, builder.lora);
        up = new Projection("up", null, Division.ROWS_TRANSPOSED, builder.lora);
        down = new Projection("down", null, Division.COLUMNS_TRANSPOSED, builder.lora);
    }

    public static Builder builder() {
        return new Builder();
    }

    @Override
    protected void prepare(Shape[] inputShapes) {
        long size = inputShapes[0].getLastDimension();
        gate.setFullShape(hidden, size);
        up.setFullShape(hidden, size);
        down.setFullShape(size, hidden);
    }

    @Override
    NDArray forward(ParameterStore store, NDArray x, boolean training) {
        List<NDArray> in = enterRegion(store, x, training, List.of(gate, up));
        NDArray gated = BlockOperators.of(group()).gated(in);
        return leaveRegion(store, gated, training, down);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private long hidden;
        private Lora lora;

        private Builder() {}

        /** Sets the number of hidden values of all ranks together, divisible by the world size. */
        public Builder setHidden(long hidden) {
            this.hidden = hidden;
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

        public ParallelMlp build() {
            if (hidden < 1) {
                throw new IllegalArgumentException(
                        "ParallelMlp: the hidden values must be 1 or more, not " + hidden);
            }
            return new ParallelMlp(this);
        }
    }
}
