/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

/**
 * How the tensors of all ranks are combined, element by element; the counterpart of {@code
 * torch.distributed.ReduceOp}.
 *
 * <p>Whatever the backend, a rank's contribution counts in rank order. 16-bit floating-point types
 * are accumulated in float32 and rounded once, other types in their own precision.
 */
public enum ReduceOp {
    /** The sum; integers wrap around, booleans are or-ed. */
    SUM,
    /** The sum divided by the number of ranks; floating-point types only. */
    AVG,
    /** The product; integers wrap around, booleans are and-ed. */
    PRODUCT,
    /** The smallest value; NaN if any is NaN. */
    MIN,
    /** The largest value; NaN if any is NaN. */
    MAX
}
