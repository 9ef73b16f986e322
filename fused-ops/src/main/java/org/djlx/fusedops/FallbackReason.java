/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

/** Why a fused operator took the plain path: the collective, and what is before or after it. */
public enum FallbackReason {
    /**
     * The group's backend has no P2P buffers, or no means to use them here: its GPUs do not all
     * access each other's memory, for example in a hybrid cube mesh.
     */
    NO_P2P_BUFFERS,
    /** A is gathered along its last dimension, over which the matmul sums. */
    GATHER_ALONG_LAST_DIMENSION,
    /**
     * What the ranks send does not fit into half of a P2P buffer; or, of an all-reduce + RMSNorm,
     * is too much for one launch, or nothing.
     */
    BUFFER_TOO_SMALL,
    /** On GPUs the {@linkplain org.djlx.fusedops.cost.CostModel cost model} says it is faster. */
    NCCL_IS_FASTER,
    /** {@link FusedOps#forceFallback()} is in force. */
    FORCED
}
