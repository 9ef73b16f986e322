/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.train;

import org.djlx.collectives.ReduceOp;

/**
 * How the gradients of processes, each of which has a loss of its own, become one. Ranks of one JVM
 * have one loss, and its gradient.
 */
public enum GradientReduction {
    /** They are added up: the gradient of the sum of the losses. */
    SUM(ReduceOp.SUM),
    /** They are added up and divided by the number of processes: that of the mean of the losses. */
    MEAN(ReduceOp.AVG);

    private final ReduceOp op;

    GradientReduction(ReduceOp op) {
        this.op = op;
    }

    ReduceOp op() {
        return op;
    }
}
