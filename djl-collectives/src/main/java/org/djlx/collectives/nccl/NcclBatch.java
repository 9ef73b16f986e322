/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.CollectiveException;
import org.djlx.nativeops.NcclGroup;

/**
 * Operations of {@code nccl} groups that one thread issues and NCCL starts together: the way for
 * one thread to drive all GPUs, issuing each operation for one rank after the other. All ranks of a
 * group put the same operations into a batch.
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

    private final Map<Lane, List<NcclWork>> works = new LinkedHashMap<>();
    private int depth;
    private Throwable failure; // of the calls

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
        begin();
        try {
            calls.run();
        } catch (RuntimeException | Error e) {
            CURRENT.get().failure = e;
            throw e;
        } finally {
            end();
        }
    }

    /** The batch that this thread has open, or null. */
    static NcclBatch current() {
        return CURRENT.get();
    }

    static void begin() {
        NcclBatch batch = CURRENT.get();
        if (batch == null) {
            batch = new NcclBatch();
            CURRENT.set(batch);
        }
        batch.depth++;
    }

    /** Adds an operation, which the end of the batch launches. */
    void add(Lane lane, NcclWork work) {
        works.computeIfAbsent(lane, key -> new ArrayList<>()).add(work);
    }

    static void end() {
        NcclBatch batch = CURRENT.get();
        batch.depth--;
        if (batch.depth == 0) {
            CURRENT.remove();
            batch.launch();
        }
    }

    private void launch() {
        if (failure != null) {
            works.keySet().forEach(lane -> lane.fail(reason(failure)));
            return;
        }
        works.entrySet().removeIf(entry -> !entry.getKey().own(entry.getValue()));
        if (works.isEmpty()) {
            return;
        }
        try {
            NcclGroup.run(() -> works.forEach(Lane::launch));
        } catch (RuntimeException | Error e) {
            CollectiveException reason = reason(e);
            works.keySet().forEach(lane -> lane.fail(reason));
            works.keySet().forEach(lane -> lane.release(List.of()));
            throw reason;
        }
        works.forEach(Lane::release);
    }

    private static CollectiveException reason(Throwable cause) {
        return new CollectiveException(
                "a batch could not be started: " + cause.getMessage(), cause);
    }
}
