// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import org.djlx.collectives.internal.gpu.GpuTurns;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;

/**
 * The turn of a rank around each launch of a CUDA graph that holds operations of its group. The
 * launch counts as one call of the group. It waits for its turn if the graph holds an operation
 * that fills the GPU.
 */
final class GraphTurn implements CudaGraph.LaunchHook, GpuTurns.Launched {

    private final GpuTurns.Member turn;
    private final String group;
    private Duration timeout;
    private CudaEvent ended; // null unless an operation fills the GPU; guarded by this
    private long number; // of the launch under way

    GraphTurn(GpuTurns.Member turn, String group) {
        this.turn = turn;
        this.group = group;
    }

    /** The graph holds an operation that fills the GPU, which waits so long for its peers. */
    synchronized void fill(CudaStream stream, Duration timeout) {
        this.timeout = timeout;
        if (ended == null) {
            ended = CudaEvent.create(stream.device());
        }
    }

    @Override
    public void before(CudaStream stream) {
        number = turn.begin();
        if (timeout != null) {
            String launch = "call " + number + ", a CUDA graph, of group '" + group + "'";
            turn.await(number, launch, timeout).forEach(earlier -> earlier.order(stream));
        }
    }

    @Override
    public void after(CudaStream stream) {
        if (timeout == null) {
            turn.passed(number);
            return;
        }
        synchronized (this) {
            ended.record(stream);
        }
        turn.launched(number, this);
    }

    /** No-op after the graph was closed, which waits for its last launch. */
    @Override
    public synchronized void order(CudaStream stream) {
        if (ended != null) {
            stream.waitEvent(ended);
        }
    }

    @Override
    public synchronized void close() {
        if (ended != null) {
            ended.close();
            ended = null;
        }
    }
}
