/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import org.djlx.collectives.internal.gpu.Batch;
import org.djlx.collectives.internal.host.Required;

/**
 * Operations of {@code nccl} groups that one thread issues and NCCL starts together: the way for
 * one thread to drive all GPUs, issuing each operation for one rank after the other. A group's
 * collectives run in the order of the calls, as they do without a batch; sends and receives go on
 * at the same time.
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
 * <p>Works can be waited for when the batch has ended. Batches may be nested; the outermost counts.
 *
 * <p>All-reduces that {@code cuda_p2p} does by kernels take their turn in a batch. Operators on P2P
 * buffers ({@link ProcessGroup#execute}) are no part of it: they are enqueued at once, behind what
 * was called before the batch, but before what the batch has yet to start. Groups whose calls are
 * {@linkplain NcclOptions.Builder#optVerify verified} by {@code cuda_p2p} need a thread for each
 * rank, as each call waits for those of the other ranks.
 */
public final class NcclBatch {

    private NcclBatch() {}

    /**
     * Runs calls as a batch.
     *
     * @param calls issue operations, of any ranks and groups of this JVM; they must not wait. What
     *     they throw is passed on; what they have issued in this batch until then is not started,
     *     and breaks its groups, as other ranks may have started theirs
     * @throws CollectiveException if the operations cannot be started, which breaks their groups
     */
    public static void run(Runnable calls) {
        Batch.run(Required.argument("NcclBatch.run: calls", calls));
    }
}
