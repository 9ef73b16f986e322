/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.gpu;

import java.util.ArrayDeque;
import java.util.Deque;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;

/**
 * Events of one GPU that are used again and again: creating one costs more than an operation.
 * Internal: for backends on GPUs.
 */
public final class EventPool implements AutoCloseable {

    private final CudaDevice device;
    private final Deque<CudaEvent> idle = new ArrayDeque<>();
    private boolean closed;

    /**
     * Creates an empty pool.
     *
     * @param device the GPU
     */
    public EventPool(CudaDevice device) {
        this.device = device;
    }

    /**
     * Returns an event that nobody else uses.
     *
     * @return the event
     */
    public CudaEvent take() {
        synchronized (this) {
            if (!idle.isEmpty()) {
                return idle.pop();
            }
        }
        return CudaEvent.create(device);
    }

    /**
     * Takes an event back.
     *
     * @param event the event
     */
    public void give(CudaEvent event) {
        synchronized (this) {
            if (!closed) {
                idle.push(event);
                return;
            }
        }
        event.close();
    }

    /** Closes the idle events; those in use are closed when they come back. */
    @Override
    public synchronized void close() {
        closed = true;
        idle.forEach(CudaEvent::close);
        idle.clear();
    }
}
