// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.util.ArrayDeque;
import java.util.Deque;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;

/** Reusable events of one GPU: creating an event costs more than enqueuing an operation. */
public final class EventPool implements AutoCloseable {

    private final CudaDevice device;
    private final Deque<CudaEvent> idle = new ArrayDeque<>();
    private boolean closed;

    public EventPool(CudaDevice device) {
        this.device = device;
    }

    /** Takes an idle event, or creates one; the caller gives it back. */
    public CudaEvent take() {
        synchronized (this) {
            if (!idle.isEmpty()) {
                return idle.pop();
            }
        }
        return CudaEvent.create(device);
    }

    public void give(CudaEvent event) {
        synchronized (this) {
            if (!closed) {
                idle.push(event);
                return;
            }
        }
        event.close();
    }

    /** Closes the idle events. Events in use are closed when they are given back. */
    @Override
    public synchronized void close() {
        closed = true;
        idle.forEach(CudaEvent::close);
        idle.clear();
    }
}
