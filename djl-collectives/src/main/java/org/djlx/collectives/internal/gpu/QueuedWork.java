// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;

/**
 * An operation on a {@link StreamQueue}. The caller issues the work; the queue launches it, usually
 * within the same call.
 */
public final class QueuedWork extends GpuWork {

    private final Lane lane;
    private final GpuCall call;
    private final int peer;
    private volatile boolean verifying;
    private CudaEvent ready; // after the caller's earlier work; null once launched; guarded by this

    /**
     * Creates the work, which runs after all work enqueued on the caller's current stream; the peer
     * is the other rank of a message, or -1 for a collective.
     */
    QueuedWork(
            Lane lane,
            CudaStream current,
            Operation operation,
            GpuCall call,
            List<NDArray> result,
            int peer) {
        super(
                operation,
                result,
                lane.launcher().resources().events(),
                lane.launcher().resources().current(),
                lane.launcher().resources().blocking() || operation.type() == OpType.BARRIER);
        this.lane = lane;
        this.call = call;
        this.peer = peer;
        ready = resources().events().take();
        ready.record(current);
    }

    @Override
    public Lane queue() {
        return lane;
    }

    private GpuResources resources() {
        return lane.launcher().resources();
    }

    /** Returns the other rank of a message; -1 for a collective. */
    public int peer() {
        return peer;
    }

    boolean isMessage() {
        return peer >= 0;
    }

    public GpuCall call() {
        return call;
    }

    /** Stops the operation's timeout: the verification has its own timeout. */
    void beginVerification() {
        verifying = true;
    }

    /** Restarts the operation's timeout. */
    void endVerification() {
        restartTime();
        verifying = false;
    }

    @Override
    public long elapsedNanos() {
        return verifying ? 0 : super.elapsedNanos();
    }

    /** Enqueues the operation on its stream; no-op if the work has ended. */
    void launch() {
        CudaEvent before;
        synchronized (this) {
            if (hasEnded()) {
                return;
            }
            before = ready;
            ready = null;
        }
        CudaStream stream = lane.stream();
        stream.waitEvent(before);
        resources().events().give(before);
        operation().started();
        resources().load(call.in(), stream);
        resources().load(call.out(), stream);
        call.body().enqueue(stream);
    }

    private synchronized boolean isLaunched() {
        return ready == null;
    }

    /** Records the end of the work that {@link #launch} has enqueued on its stream. */
    void launched() {
        if (hasEnded()) {
            return; // It failed during the launch, and its tensors are released.
        }
        resources().flush(call.out(), lane.stream());
        recordEnd(lane.stream());
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
            resources().events().give(ready);
            ready = null;
        }
        super.recycleEvents();
    }

    @Override
    protected CollectiveException failureAtEnd() {
        return call.isConnected() ? null : lane.launcher().failureOf(operation());
    }

    /** Releases the tensors and events of work that could not be issued. */
    void discard() {
        release();
        recycleEvents();
    }

    /** Throws if the work is part of an open batch of this thread: the wait would never end. */
    @Override
    protected void requireWaitable() {
        if (!isEnqueued() && Batch.current() != null) {
            throw new IllegalStateException(
                    operation() + " is part of a batch: wait for it after the batch has ended");
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
