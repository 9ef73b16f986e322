// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import org.djlx.collectives.internal.gpu.Batch;
import org.djlx.nativeops.host.Required;

/**
 * Issues operations of {@code nccl} groups as one NCCL group call ({@code ncclGroupStart}, {@code
 * ncclGroupEnd}). One thread can then drive all GPUs: it issues each operation for one rank after
 * the other.
 *
 * <pre>{@code
 * List<Work> works = new ArrayList<>();
 * NcclBatch.run(
 *         () -> {
 *             for (int rank = 0; rank < groups.size(); rank++) {
 *                 works.add(groups.get(rank).allReduce(tensors.get(rank), ReduceOp.SUM));
 *             }
 *         });
 * works.forEach(Work::await);
 * }</pre>
 *
 * <ul>
 *   <li>Collectives of a group run in the order of the calls, as without a batch. Sends and
 *       receives run concurrently.
 *   <li>Wait for works only after the batch has ended.
 *   <li>Batches may be nested: all calls belong to the outermost batch.
 *   <li>All-reduces that {@code cuda_p2p} runs as kernels keep their position in the batch.
 *   <li>Operators on P2P buffers ({@link ProcessGroup#execute}) are not part of the batch. They are
 *       enqueued together: after the calls made before the batch, and before the operations that
 *       the batch has not started yet.
 *   <li>{@code cuda_p2p} groups with {@linkplain DebugLevel#DETAIL verified} calls need one thread
 *       per rank, because each call blocks until the other ranks have made the same call.
 * </ul>
 */
public final class NcclBatch {

    private NcclBatch() {}

    /**
     * Runs calls as a batch. If {@code calls} throws, the exception is passed on, the operations
     * issued in this batch are not started, and their groups are broken, because other ranks may
     * have started the same operations.
     *
     * @param calls issues operations of any ranks and groups of this JVM; must not wait for works
     * @throws CollectiveException if NCCL cannot start the operations; their groups are then broken
     */
    public static void run(Runnable calls) {
        Batch.run(Required.argument("NcclBatch.run: calls", calls));
    }
}
