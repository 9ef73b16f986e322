// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.ndarray.NDArray;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.nativeops.torch.TensorHold;

/**
 * Keeps arrays until their stream has executed the work that uses them; see {@link
 * CudaStream#keepAlive}. There is no background thread: later calls release arrays whose work is
 * complete.
 */
final class StreamOrderedRelease implements AutoCloseable {

    /** Instances whose stream was closed before its work was complete. */
    private static final Set<StreamOrderedRelease> CLOSED = ConcurrentHashMap.newKeySet();

    private final CudaStream stream;
    private final Deque<Held> pending = new ArrayDeque<>();
    private final Deque<CudaEvent> idle = new ArrayDeque<>();

    StreamOrderedRelease(CudaStream stream) {
        this.stream = stream;
    }

    void hold(NDArray... arrays) {
        if (stream.isCapturing()) {
            CudaGraph.keepAlive(Runnable::run, arrays);
            return;
        }
        releasePassed();
        List<TensorHold> held = TensorHold.all(arrays);
        try {
            holdUntilPassed(held);
        } catch (CudaException e) {
            held.forEach(TensorHold::close);
            throw e;
        }
    }

    private synchronized void holdUntilPassed(List<TensorHold> held) {
        CudaEvent event = idle.isEmpty() ? CudaEvent.create(stream.device()) : idle.pop();
        try {
            event.record(stream);
        } catch (CudaException e) {
            event.close();
            throw e;
        }
        pending.add(new Held(event, held));
    }

    void releasePassed() {
        // Querying an event would invalidate a capture by this thread.
        if (!CudaGraph.isCapturing()) {
            CLOSED.forEach(StreamOrderedRelease::close);
            releaseOwn();
        }
    }

    private synchronized void releaseOwn() {
        while (!pending.isEmpty() && pending.peek().passed.query()) {
            Held done = pending.remove();
            idle.push(done.passed);
            done.arrays.forEach(TensorHold::close);
        }
    }

    /** Releases arrays whose work is complete. Later calls on other streams release the rest. */
    @Override
    public synchronized void close() {
        CLOSED.add(this);
        if (CudaGraph.isCapturing()) {
            return;
        }
        releaseOwn();
        if (pending.isEmpty()) {
            CLOSED.remove(this);
            idle.forEach(CudaEvent::close);
            idle.clear();
        }
    }

    private record Held(CudaEvent passed, List<TensorHold> arrays) {}
}
