// SPDX-License-Identifier: Apache-2.0
package com.example.backend;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBackend;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A backend as a third party would write one, with the public packages alone: ranks are threads of
 * this JVM, P2P memory is its heap's neighbour, and the stream beside the current one counts what
 * it puts. It has no collectives.
 */
final class ThreadsBackend extends Backend implements P2pBackend {

    static final String NAME = "threads";

    private static final int BUFFER = 1 << 20;
    private static final int CHANNELS = 1;
    private static final Map<String, Shared> GROUPS = new ConcurrentHashMap<>();

    /** What the ranks of a group have in common. */
    private static final class Shared {

        private final Memory[] memory;
        private final long[][] signals; // [rank it lies on][rank that raises it]; guarded by this
        private int puts; // guarded by this

        Shared(int worldSize) {
            memory = new Memory[worldSize];
            for (int rank = 0; rank < worldSize; rank++) {
                memory[rank] = new Memory(BUFFER + 256);
            }
            signals = new long[worldSize][worldSize];
        }

        synchronized void raise(int on, int by, long epoch) {
            signals[on][by] = epoch;
            notifyAll();
        }

        synchronized void await(Operation operation, int on, int by, long epoch) {
            long end = System.nanoTime() + operation.timeout().toNanos();
            try {
                while (signals[on][by] - epoch < 0) {
                    long left = end - System.nanoTime();
                    if (left <= 0) {
                        throw new CollectiveTimeoutException(
                                operation + ": rank " + by + " did not come", List.of(by));
                    }
                    wait(1 + left / 1_000_000);
                }
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    static BackendFactory factory() {
        return new BackendFactory() {

            @Override
            public String name() {
                return NAME;
            }

            @Override
            public Support support() {
                return Support.builder().build();
            }

            @Override
            public Backend create(GroupContext context) {
                Shared shared =
                        GROUPS.computeIfAbsent(
                                context.name(), name -> new Shared(context.worldSize()));
                return new ThreadsBackend(shared, context.rank(), context.worldSize());
            }
        };
    }

    /** How often ranks have put something into each other's memory. */
    static int puts(String group) {
        Shared shared = GROUPS.get(group);
        synchronized (shared) {
            return shared.puts;
        }
    }

    private final Buffers buffers;

    private ThreadsBackend(Shared shared, int rank, int worldSize) {
        buffers = new Buffers(shared, rank, worldSize);
    }

    private static final class Buffers extends P2pBuffers {

        private final Shared shared;

        Buffers(Shared shared, int rank, int worldSize) {
            super(rank, worldSize, BUFFER, 0, CHANNELS);
            this.shared = shared;
        }

        @Override
        protected NDArray view(
                NDManager manager, int peer, Shape shape, ScalarType type, long offset) {
            long start = (Pointer.nativeValue(shared.memory[peer]) + 255) / 256 * 256;
            NativeMemory memory = new NativeMemory(start, BUFFER, Device.cpu(), () -> {});
            return Torch.view(manager, memory, offset, shape, type);
        }

        @Override
        public long epoch(Operation operation) {
            return (int) operation.sequence();
        }

        @Override
        public void putSignal(int peer, int channel, long epoch) {
            shared.raise(peer, rank(), epoch);
        }

        @Override
        public void waitSignal(Operation operation, int peer, int channel, long epoch) {
            shared.await(operation, rank(), peer, epoch);
        }

        @Override
        public void awaitAgreement(Operation operation) {
            // The ranks of this test call the same.
        }

        @Override
        public void intraNodeBarrier(Operation operation) {
            throw new UnsupportedOperationException();
        }

        @Override
        public P2pStream sideStream(Operation operation) {
            return new Counting(super.sideStream(operation));
        }

        /** A stream of its own, made of the one that every host has. */
        private final class Counting implements P2pStream {

            private final P2pStream stream;

            Counting(P2pStream stream) {
                this.stream = stream;
            }

            @Override
            public void put(int peer, long offset, long source, long byteSize) {
                synchronized (shared) {
                    shared.puts++;
                }
                stream.put(peer, offset, source, byteSize);
            }

            @Override
            public void copy(long destination, long source, long byteSize) {
                stream.copy(destination, source, byteSize);
            }

            @Override
            public void signal(int peer, int channel, long epoch) {
                stream.signal(peer, channel, epoch);
            }

            @Override
            public void waitSignal(int peer, int channel, long epoch) {
                stream.waitSignal(peer, channel, epoch);
            }

            @Override
            public void waitSignals(int channel, long epoch) {
                stream.waitSignals(channel, epoch);
            }

            @Override
            public void barrier() {
                stream.barrier();
            }

            @Override
            public boolean isRecorded() {
                return false;
            }

            @Override
            public void keepAlive(NDArray... arrays) {}

            @Override
            public Event record() {
                return stream.record();
            }

            @Override
            public void waitEvent(Event event) {
                stream.waitEvent(event);
            }

            @Override
            public void close() {
                stream.close();
            }
        }
    }

    /** Operations run when they are issued. */
    private record Done(Throwable failure) implements Work {

        @Override
        public boolean isCompleted() {
            return true;
        }

        @Override
        public Optional<Throwable> exception() {
            return Optional.ofNullable(failure);
        }

        @Override
        public void await() {
            if (failure instanceof RuntimeException e) {
                throw e;
            }
        }

        @Override
        public void await(Duration timeout) {
            await();
        }

        @Override
        public List<NDArray> result() {
            return List.of();
        }

        @Override
        public CompletionStage<List<NDArray>> getFuture() {
            return failure == null
                    ? CompletableFuture.completedStage(List.of())
                    : CompletableFuture.failedStage(failure);
        }
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public Support support() {
        return factory().support();
    }

    @Override
    public Device device() {
        return Device.cpu();
    }

    @Override
    public Work execute(Operation operation, Consumer<Operation> body) {
        RuntimeException failure = null;
        operation.started();
        try {
            body.accept(operation);
        } catch (RuntimeException e) {
            failure = e;
        }
        operation.ended(failure);
        return new Done(failure);
    }

    @Override
    public Optional<P2pBuffers> p2pBuffers() {
        return Optional.of(buffers);
    }

    @Override
    public void close() {}
}
