/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.trace;

import ai.djl.Device;
import java.util.Optional;
import org.djlx.collectives.Backend;
import org.djlx.collectives.BackendFactory;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.Operation;
import org.djlx.collectives.P2pBuffers;
import org.djlx.collectives.Support;
import org.djlx.collectives.Work;
import org.djlx.nativeops.CudaDevice;

/**
 * Another backend, whose P2P buffers can note what an operator does with them. Of operations it has
 * those that fused operators are: what is executed.
 */
final class TracedBackend extends Backend {

    private final Backend inner;
    private final TracedBuffers buffers; // null if the other has none

    private TracedBackend(Backend inner) {
        this.inner = inner;
        this.buffers =
                inner.p2pBuffers()
                        .map(
                                its ->
                                        new TracedBuffers(
                                                its,
                                                inner.device().isGpu()
                                                        ? CudaDevice.open(inner.device())
                                                        : null))
                        .orElse(null);
    }

    /** What makes such backends of those that another factory makes. */
    record Factory(String name, BackendFactory inner) implements BackendFactory {

        @Override
        public Support support() {
            return inner.support();
        }

        @Override
        public Backend create(GroupContext context) {
            return new TracedBackend(inner.create(context));
        }
    }

    @Override
    public String name() {
        return inner.name();
    }

    @Override
    public Support support() {
        return inner.support();
    }

    @Override
    public Device device() {
        return inner.device();
    }

    @Override
    public Work execute(Operation operation, Runnable body) {
        return inner.execute(operation, body);
    }

    @Override
    public Optional<P2pBuffers> p2pBuffers() {
        return Optional.ofNullable(buffers);
    }

    @Override
    public void stopWaiting() {
        inner.stopWaiting();
    }

    @Override
    public void endCalls() {
        inner.endCalls();
    }

    @Override
    public void drain() {
        inner.drain();
    }

    @Override
    public void close() {
        inner.close();
        if (buffers != null) {
            buffers.close();
        }
    }
}
