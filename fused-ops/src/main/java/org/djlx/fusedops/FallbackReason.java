// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

/**
 * Why a fused operator fell back to {@link org.djlx.fusedops.cost.Path#NCCL}: a collective of the
 * group, with the computation before or after it.
 */
public enum FallbackReason {
    /**
     * The group has no P2P buffers that all ranks can use: its backend has none, or some GPUs have
     * no peer access to each other, for example in a hybrid cube mesh. For {@link
     * VariableAllToAll}: there is no P2P buffer that a kernel can use, as on the CPU.
     */
    NO_P2P_BUFFERS,
    /**
     * The P2P buffers are smaller than 1 KiB. For all-reduce + RMSNorm: the rows are too large for
     * the fused kernel, or there are no rows.
     */
    BUFFER_TOO_SMALL,
    /**
     * The {@linkplain org.djlx.fusedops.cost.CostModel cost model} predicts that NCCL and one
     * matmul are faster. Only on GPUs.
     */
    NCCL_IS_FASTER,
    /** {@link FusedOps#forceFallback()} is in force. */
    FORCED
}
