// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pAllocator;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.internal.path.Fallbacks;
import org.djlx.fusedops.internal.path.OperandChecks;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * Collectives that leave a GPU's SMs to concurrent kernels: copy engines move the data of large
 * arrays, and a kernel runs only to reduce. They are the group's collectives through {@link
 * ProcessGroup#withCopyEngines}, with checks for gradients. Like PyTorch's {@code
 * torch.ops.symm_mem._low_contention_all_gather} and {@code _low_contention_reduce_scatter}, but
 * these methods push data and PyTorch's pull.
 *
 * <p>Rules:
 *
 * <ul>
 *   <li>An invalid argument throws {@link IllegalArgumentException}; nothing has been sent then.
 *   <li>The caller waits for the returned {@link Work}.
 *   <li>If the group has no P2P buffers, all ranks use the group's own collective; {@link
 *       FusedOps#countUsage} counts it as NCCL.
 *   <li>Arrays that are larger than the buffers are sent in rounds.
 *   <li>Arrays that are not contiguous are copied.
 *   <li>There is no gradient: with gradients on, an input that requires a gradient is refused.
 *       {@link org.djlx.collectives.gradient.DifferentiableCollectives} has collectives with
 *       gradients.
 * </ul>
 */
public final class LowContention {

    static final OpType ALL_GATHER = new OpType("lowContentionAllGather");
    static final OpType REDUCE_SCATTER = new OpType("lowContentionReduceScatter");

    private LowContention() {}

    /**
     * Gathers the arrays of all ranks into one array on every rank, in rank order. If the output
     * lies in the {@linkplain P2pAllocator P2P heap}, the other ranks write into it directly. The
     * outputs must then lie there on all ranks, at the same offset. Otherwise the other ranks write
     * into this rank's P2P buffer, and this rank copies the result from there.
     *
     * @param output receives the arrays; has world size times as many elements as the input
     * @param input this rank's array, of any element type; the same shape on all ranks. It may be
     *     this rank's part of the output. Otherwise input and output share no memory
     * @see ProcessGroup#allGatherIntoTensor(NDArray, NDArray)
     */
    public static Work allGather(ProcessGroup group, NDArray output, NDArray input) {
        OperandChecks arguments = new OperandChecks(ALL_GATHER.toString());
        arguments.checkNotNull("the group", group);
        checkNotRecorded(arguments, input, "allGather");
        TensorInfo in = group.checkAllGather(output, input);
        boolean staged =
                !group.isP2pAvailable()
                        || group.requireP2pBuffers().allocator().offsetOf(output).isEmpty();
        return chosen(ALL_GATHER, group, staged ? in.byteSize() : 0)
                .allGatherIntoTensor(output, input);
    }

    /**
     * Reduces an array over all ranks and scatters the result along its first dimension, in rank
     * order.
     *
     * @param output receives this rank's part; the same shape on all ranks. It may be this rank's
     *     part of the input. Otherwise input and output share no memory
     * @param input the array to reduce, of float32, float64, float16 or bfloat16; has world size
     *     times as many elements as the output
     * @param op {@link ReduceOp#SUM} or {@link ReduceOp#AVG}. Reduces in rank order; sums 16-bit
     *     types in float32 and rounds once
     * @see ProcessGroup#reduceScatterTensor(NDArray, NDArray, ReduceOp)
     */
    public static Work reduceScatter(
            ProcessGroup group, NDArray output, NDArray input, ReduceOp op) {
        OperandChecks arguments = new OperandChecks(REDUCE_SCATTER.toString());
        arguments.checkNotNull("the group", group);
        arguments.checkSum(op);
        checkNotRecorded(arguments, input, "reduceScatter");
        TensorInfo out = group.checkReduceScatter(output, input, op);
        arguments.checkFloating("output", out.type());
        return chosen(REDUCE_SCATTER, group, out.byteSize()).reduceScatterTensor(output, input, op);
    }

    /**
     * Refuses an input that requires a gradient, which would be lost, because the output is the
     * caller's array.
     */
    private static void checkNotRecorded(
            OperandChecks arguments, NDArray input, String differentiable) {
        if (input != null && NoGradient.isRecorded(input)) {
            throw arguments.wrong(
                    "the input requires a gradient, which would be lost: call"
                            + " DifferentiableCollectives.%s, switch gradients off, or pass"
                            + " input.stopGradient()",
                    differentiable);
        }
    }

    /** Counts the call, and returns the view of the group that runs it. */
    private static ProcessGroup chosen(OpType type, ProcessGroup group, long partBytes) {
        return Fallbacks.fallsBack(type, group, partBytes) ? group : group.withCopyEngines();
    }
}
