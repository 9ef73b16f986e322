/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import java.util.LinkedHashSet;
import java.util.Set;
import org.djlx.collectives.CollectiveException;
import org.djlx.nativeops.NcclException;
import org.djlx.nativeops.NcclGroup;

/**
 * Operations of {@code nccl} groups that one thread issues and NCCL starts together: the way for
 * one thread to drive all GPUs, issuing each operation for one rank after the other.
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
 */
public final class NcclBatch {

    private static final ThreadLocal<NcclBatch> CURRENT = new ThreadLocal<>();

    private final Set<Lane> lanes = new LinkedHashSet<>();
    private int depth;

    private NcclBatch() {}

    /**
     * Runs calls as a batch.
     *
     * @param calls issue operations, of any ranks and groups of this JVM; they must not wait
     * @throws CollectiveException if the operations cannot be started, which breaks their groups
     */
    public static void run(Runnable calls) {
        begin();
        try {
            calls.run();
        } finally {
            end();
        }
    }

    /** The batch that this thread has open, or null. */
    static NcclBatch current() {
        return CURRENT.get();
    }

    static void begin() {
        NcclGroup.begin();
        NcclBatch batch = CURRENT.get();
        if (batch == null) {
            batch = new NcclBatch();
            CURRENT.set(batch);
        }
        batch.depth++;
    }

    /** Adds a lane on which an operation was issued, and which this thread has for itself. */
    void add(Lane lane) {
        lanes.add(lane);
    }

    static void end() {
        NcclBatch batch = CURRENT.get();
        batch.depth--;
        boolean last = batch.depth == 0;
        if (last) {
            CURRENT.remove();
        }
        try {
            NcclGroup.end();
        } catch (NcclException e) {
            CollectiveException reason =
                    new CollectiveException("a batch could not be started: " + e.getMessage(), e);
            batch.lanes.forEach(lane -> lane.fail(reason));
            throw reason;
        } finally {
            if (last) {
                batch.lanes.forEach(Lane::release);
            }
        }
    }
}
