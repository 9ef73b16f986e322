// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import org.djlx.collectives.ReduceOp;

/**
 * How gradients are reduced across processes, which compute one loss each. Ranks of one JVM compute
 * one loss together, so this does not apply to them.
 */
public enum GradientReduction {
    /** The sum: the gradient of the sum of the losses. */
    SUM(ReduceOp.SUM),
    /** The average, as PyTorch's DDP: the gradient of the mean of the losses. */
    MEAN(ReduceOp.AVG);

    private final ReduceOp op;

    GradientReduction(ReduceOp op) {
        this.op = op;
    }

    ReduceOp op() {
        return op;
    }
}
