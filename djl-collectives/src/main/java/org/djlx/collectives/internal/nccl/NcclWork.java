/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.gpu.GpuWork;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.nccl.NcclCommunicator;

/**
 * An operation on the stream of an {@link NcclQueue}: issued by the caller, then launched by the
 * queue, which is mostly the same call.
 */
final class NcclWork extends GpuWork {

    private final NcclQueue queue;
    private final Call call;
    private final int peer;
    private volatile boolean verifying;
    private CudaEvent ready; // what the caller has enqueued before, until launched; guarded by this

    /**
     * Creates the work, behind what was enqueued on the caller's current stream.
     *
     * @param queue where it runs
     * @param current the caller's current stream
     * @param operation the operation
     * @param call what it does
     * @param result its outputs
     * @param peer the other rank of a message, or -1
     */
    NcclWork(
            NcclQueue queue,
            CudaStream current,
            Operation operation,
            Call call,
            List<NDArray> result,
            int peer) {
        super(
                operation,
                result,
                queue.resources().events(),
                queue.resources().current(),
                queue.resources().blocking() || operation.type() == OpType.BARRIER);
        this.queue = queue;
        this.call = call;
        this.peer = peer;
        ready = queue.resources().events().take();
        ready.record(current);
    }

    @Override
    public NcclQueue queue() {
        return queue;
    }

    int peer() {
        return peer;
    }

    boolean isMessage() {
        return peer >= 0;
    }

    Call call() {
        return call;
    }

    /** Tells that who verifies the work takes care of its timeout. */
    void beginVerification() {
        verifying = true;
    }

    /** Starts the time that the operation may take. */
    void endVerification() {
        restartTime();
        verifying = false;
    }

    @Override
    public long elapsedNanos() {
        return verifying ? 0 : super.elapsedNanos();
    }

    /** Enqueues the operation, by the queue. */
    void launch(NcclCommunicator nccl, CudaStream stream) {
        CudaEvent before;
        synchronized (this) {
            if (hasEnded()) {
                return;
            }
            before = ready;
            ready = null;
        }
        stream.waitEvent(before);
        queue.resources().events().give(before);
        operation().started();
        queue.resources().load(call.in(), stream);
        queue.resources().load(call.out(), stream);
        call.body().enqueue(nccl, stream);
    }

    private synchronized boolean isLaunched() {
        return ready == null;
    }

    /** Marks the end of what {@link #launch} enqueued, when NCCL has it in the stream. */
    void launched(CudaStream stream) {
        if (hasEnded()) {
            return; // It has failed meanwhile, and its tensors are gone.
        }
        queue.resources().flush(call.out(), stream);
        recordEnd(stream);
    }

    @Override
    protected void release() {
        if (hasFailed() && isLaunched()) {
            call.body().releaseFailed(call::release);
        } else {
            call.release();
        }
    }

    @Override
    protected synchronized void recycleEvents() {
        if (ready != null) {
            queue.resources().events().give(ready);
            ready = null;
        }
        super.recycleEvents();
    }

    @Override
    protected CollectiveException failureAtEnd() {
        return call.byNccl() ? null : queue.failureOf(operation());
    }

    /** Ends the work, of which nothing was launched. */
    void fail(CollectiveException reason) {
        if (seal(reason)) {
            complete(true);
        }
    }

    /** Gives up what the work holds, if it could not be issued. */
    void discard() {
        release();
        recycleEvents();
    }

    /** Refuses to wait for what this thread itself has yet to launch. */
    @Override
    protected void requireWaitable() {
        if (!isEnqueued() && Batch.current() != null) {
            throw new IllegalStateException(
                    operation() + " is part of a batch: wait for it when the batch has ended");
        }
    }

    @Override
    public int sourceRank() {
        if (operation().type() == OpType.RECV && isSuccess()) {
            return peer;
        }
        return super.sourceRank();
    }
}
