// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

import java.util.Locale;

/**
 * The ways to run a fused operator. If two predictions are too close to tell apart, the {@link
 * CostModel} takes the path that comes first here.
 */
public enum Path {
    /** One kernel exchanges all data before or after one matmul. */
    GATHERED,
    /** One kernel pushes, waits and multiplies. Only some GPUs and shapes allow it. */
    FUSED,
    /** Matmuls of parts, overlapped with copies to and from other ranks. */
    PIPELINED,
    /** The fallback: a collective of the group (on GPUs by NCCL) before or after one matmul. */
    NCCL;

    /** Returns the name in lower case. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
