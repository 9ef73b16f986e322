// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import ai.djl.Device;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.cuda.CudaDevice;

/**
 * A backend around another backend. Its P2P buffers record the steps of an operator. It executes
 * the operations of fused operators; it has no collectives.
 */
final class TracedBackend extends Backend {

    private final Backend inner;
    private final TracedBuffers buffers; // null if the wrapped backend has no buffers

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

    /** Wraps the backends of another factory. */
    private record Factory(BackendFactory inner) implements BackendFactory {

        @Override
        public String name() {
            return inner.name();
        }

        @Override
        public Support support() {
            return inner.support();
        }

        @Override
        public Backend create(GroupContext context) {
            return new TracedBackend(inner.create(context));
        }
    }

    /**
     * Creates a group whose ranks are threads, with a traced backend. During the call, the traced
     * backend is registered under the name of the wrapped backend.
     *
     * @param name the name of the backend to trace
     */
    static List<ProcessGroup> groups(String name, int worldSize, BackendOptions options) {
        BackendFactory inner = Backends.get(name);
        Backends.register(name, new Factory(inner));
        try {
            return ProcessGroups.local(name, worldSize, options);
        } finally {
            Backends.register(name, inner);
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
