// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.fusedops.internal.alltoall.DeviceAllToAll;

/**
 * All-to-all of rows whose splits are on the device, for mixtures of experts. The counterpart of
 * PyTorch's {@code torch.ops.symm_mem.all_to_all_vdev}, {@code all_to_all_vdev_2d} and {@code
 * all_to_all_vdev_2d_offset}.
 *
 * <p>With W ranks and E experts in all, rank r has the experts r * E / W to (r + 1) * E / W - 1.
 * Example with W = 2 and E = 4; c0 are rank 0's rows for expert 0, d0 are rank 1's:
 *
 * <pre>
 *                             rank 0              rank 1
 *   input of dispatch         c0 c1 c2 c3         d0 d1 d2 d3
 *   allToAllVdev2d            c0 d0 c1 d1         c2 d2 c3 d3
 *   allToAllVdev2dOffset      c0 c1 c2 c3         d0 d1 d2 d3
 * </pre>
 *
 * <p>A dispatch, the experts, and the way back:
 *
 * <pre>{@code
 * VariableAllToAll.allToAllVdev2d(group, forExperts, tokens, splits, routed, 8).await();
 * NDArray results = experts(forExperts, routed); // row i of the results is of row i of forExperts
 * NDArray back = manager.zeros(tokens.getShape());
 * NDArray returned = manager.zeros(new Shape(2, experts), DataType.INT64);
 * VariableAllToAll.allToAllVdev2dOffset(group, back, results, routed, returned).await();
 * }</pre>
 *
 * <p>Rules:
 *
 * <ul>
 *   <li>Arrays are contiguous and on the group's device. Input and output have the same element
 *       type, any, and the same sizes after the first dimension. Rows are counted along the first
 *       dimension, which may differ between ranks.
 *   <li>Splits and offsets are of int64. There are at most 1024 splits.
 *   <li>The output has a fixed size. Rows that no rank sends, such as padding, keep their values.
 *   <li>Each call is an operation of the group, on the current stream. Keep the arrays open until
 *       the returned {@link Work} has ended. {@link Work#await()} blocks the host. On GPUs it is
 *       not needed: what is enqueued on the current stream afterwards sees the output, and a
 *       failure breaks the group.
 *   <li>There is no gradient: with gradients on, an input that requires a gradient is refused.
 * </ul>
 *
 * <p>On {@code cuda_p2p} with P2P buffers one kernel does all. The host does not read the splits,
 * so a CUDA graph can replay a call with other splits. Call once before you record: the first call
 * loads the kernels. If a split or offset is wrong, or the output too small, nothing is written out
 * of bounds, the work fails with a {@link org.djlx.collectives.CollectiveException} that names the
 * rank and the value, and the group is broken.
 *
 * <p>Otherwise, as on {@code shm} and {@code nccl}, the host reads the splits: the call blocks
 * until all ranks have called it and cannot be recorded into a graph. Wrong splits or an output
 * that is too small on any rank make the call throw {@link IllegalArgumentException} on all ranks.
 * No row has been sent then, and the group stays usable.
 */
public final class VariableAllToAll {

    private VariableAllToAll() {}

    /**
     * Sends rows from every rank to every rank. As {@link ProcessGroup#allToAllSingle}, with splits
     * on the device.
     *
     * @param output receives the rows, in the order of their source ranks
     * @param input the rows, in the order of the ranks to which they go
     * @param inSplits of shape (W): the number of rows that go to each rank
     * @param outSplitsOffsets of shape (2, W): receives the number of rows that came from each rank
     *     and where they begin in the output
     * @throws IllegalArgumentException if an argument is invalid; no row has been sent then
     */
    public static Work allToAllVdev(
            ProcessGroup group,
            NDArray output,
            NDArray input,
            NDArray inSplits,
            NDArray outSplitsOffsets) {
        return DeviceAllToAll.run(
                DeviceAllToAll.VDEV, group, output, input, inSplits, outSplitsOffsets, 0);
    }

    /**
     * Sends rows from every rank to the experts of every rank.
     *
     * @param output receives the rows for this rank's experts: by expert, then by source rank
     * @param input the rows, in the order of the experts to which they go
     * @param inSplits of shape (E): the number of rows that go to each expert
     * @param outSplitsOffsets of shape (2, E): receives the number of rows of each expert and
     *     source rank, and where they begin in the output; in the order of the output
     * @param majorAlign pads the rows of each expert in the output to a multiple of this number; as
     *     in PyTorch, an expert without rows gets one multiple. 0: no padding. PyTorch's default is
     *     1, which pads an expert without rows to one row
     * @throws IllegalArgumentException if an argument is invalid; no row has been sent then
     */
    public static Work allToAllVdev2d(
            ProcessGroup group,
            NDArray output,
            NDArray input,
            NDArray inSplits,
            NDArray outSplitsOffsets,
            int majorAlign) {
        return DeviceAllToAll.run(
                DeviceAllToAll.VDEV_2D,
                group,
                output,
                input,
                inSplits,
                outSplitsOffsets,
                majorAlign);
    }

    /**
     * Sends rows from experts back to the ranks that they came from: the way back of {@link
     * #allToAllVdev2d}, whose {@code outSplitsOffsets} this method takes.
     *
     * @param output receives the rows in the order of the experts, without padding
     * @param input the rows of this rank's experts
     * @param inSplitsOffsets of shape (2, E): for each expert and destination rank the number of
     *     rows, and where they begin in the input. Chunks may have gaps between them. The offset of
     *     an empty chunk is not used
     * @param outSplitsOffsets of shape (2, E): receives the number of rows of each expert, and
     *     where they begin in the output
     * @throws IllegalArgumentException if an argument is invalid; no row has been sent then
     */
    public static Work allToAllVdev2dOffset(
            ProcessGroup group,
            NDArray output,
            NDArray input,
            NDArray inSplitsOffsets,
            NDArray outSplitsOffsets) {
        return DeviceAllToAll.run(
                DeviceAllToAll.VDEV_2D_OFFSET,
                group,
                output,
                input,
                inSplitsOffsets,
                outSplitsOffsets,
                0);
    }
}
