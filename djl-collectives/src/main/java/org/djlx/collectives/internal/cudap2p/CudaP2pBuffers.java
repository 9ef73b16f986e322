/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Optional;
import java.util.stream.IntStream;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.collectives.p2p.OneShotSlots;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * P2P buffers in the memory of GPUs. Signals are raised and awaited by streams, not by the host:
 * the methods of {@link P2pBuffers} do so on the current stream.
 *
 * <p>Operations are counted on the device, as graphs are replayed between them without the host
 * knowing. An operation {@linkplain SignalKernels#enter enters} when it first uses what ranks write
 * into; from then on all ranks may write what belongs to it. Before a stream first writes to other
 * ranks, it waits until they have entered, too: until then it may compute, and write into this
 * rank's own buffer, as no rank reads there what schedules send. An operation that is a single
 * kernel does all that itself, by {@link KernelSignals}.
 */
final class CudaP2pBuffers extends P2pBuffers {

    // What operations raise their signals to, beyond what the device has counted before.
    private static final int EPOCH = 1;

    private final P2pRegion region;
    private final CudaStream side;
    private CudaEvent entry; // null until it is used
    private final SignalKernels signals;
    private final CurrentStreams currentStreams;
    private final CudaP2pStream current = new CudaP2pStream(this);
    private final CudaP2pStream beside = new CudaP2pStream(this);
    private final int rank;
    private final KernelSignals kernelSignals; // null if kernels have none
    private final OneShotSlots oneShotSlots; // null if there are none
    private Operation underWay; // what is being enqueued, or null
    private CudaStream running; // its current stream
    private boolean captured; // whether it goes into a graph
    private boolean entered;
    private boolean entryMarked; // by the event
    private boolean besideUsed; // the operation has asked for the side stream
    private boolean reached; // the current stream has waited for all others to enter
    private boolean reachedBeside; // the side stream has
    private volatile boolean destroyed;

    CudaP2pBuffers(
            P2pRegion region,
            CudaDevice device,
            CurrentStreams currentStreams,
            SignalKernels signals,
            int kernelBlocks) {
        super(
                region.rank(),
                region.ranks(),
                region.layout().bufferSize(),
                region.layout().heapSize(),
                RegionLayout.CHANNELS);
        this.region = region;
        this.currentStreams = currentStreams;
        this.rank = region.rank();
        this.side = CudaStream.create(device, device.highestStreamPriority());
        this.signals = signals;
        kernelSignals = kernelBlocks == 0 ? null : kernelSignals(kernelBlocks);
        boolean linked = region.links().kind() == GpuTopology.Kind.FULLY_CONNECTED_NVLINK;
        oneShotSlots = kernelBlocks == 0 || !linked ? null : oneShotSlots(kernelBlocks);
    }

    private KernelSignals kernelSignals(int blocks) {
        RegionLayout layout = region.layout();
        int ranks = region.ranks();
        long[] entered = new long[ranks];
        long[] words = new long[ranks];
        long[] flags = new long[ranks];
        for (int peer = 0; peer < ranks; peer++) {
            long memory = region.address(peer);
            entered[peer] = signals.entered(peer);
            words[peer] = memory + layout.signal(0, 0);
            flags[peer] = memory + layout.flags();
        }
        return new KernelSignals(
                blocks,
                signals.status(),
                entered,
                words,
                RegionLayout.LINE,
                flags,
                RegionLayout.FLAGS,
                region.address(rank) + layout.counters());
    }

    private OneShotSlots oneShotSlots(int blocks) {
        RegionLayout layout = region.layout();
        return new OneShotSlots(
                blocks,
                signals.status(),
                IntStream.range(0, region.ranks()).mapToLong(region::address).toArray(),
                layout.begin(Algorithm.ONE_SHOT),
                layout.half(Algorithm.ONE_SHOT),
                layout.slot(Algorithm.ONE_SHOT));
    }

    @Override
    public Optional<OneShotSlots> oneShotSlots() {
        requireUsable();
        return Optional.ofNullable(oneShotSlots);
    }

    @Override
    public Optional<KernelSignals> kernelSignals() {
        requireUsable();
        return Optional.ofNullable(kernelSignals);
    }

    @Override
    public P2pStream currentStream(Operation operation) {
        requireUsable();
        Required.argument("currentStream: operation", operation);
        return current.on(stream(), operation, true);
    }

    @Override
    public P2pStream sideStream(Operation operation) {
        requireUsable();
        Required.argument("sideStream: operation", operation);
        enter();
        besideUsed = true;
        return beside.on(side, operation, false);
    }

    @Override
    public int epoch(Operation operation) {
        requireUsable();
        Required.argument("epoch: operation", operation);
        enter();
        return EPOCH;
    }

    /** Whether what follows on the current stream is behind the entry into an operation. */
    boolean hasEntered() {
        return entered;
    }

    private CudaStream stream() {
        return running == null ? currentStreams.get() : running;
    }

    /**
     * Lets the current stream enter the operation under way, unless it has: what it reads from now
     * on, others may have written for this operation, and its signals are this one's.
     */
    private void enter() {
        if (underWay != null && !entered) {
            entered = true;
            signals.enter(running);
        }
    }

    /** Lets the side stream follow on the entry into the operation under way. */
    void orderSideStream() {
        if (underWay != null) {
            markEntry();
            side.waitEvent(entry);
        }
    }

    private void markEntry() {
        if (underWay != null && !entryMarked) {
            entryMarked = true;
            if (entry == null) {
                entry = CudaEvent.create(side.device());
            }
            entry.record(running);
        }
    }

    /** Lets a stream, before it first writes to other ranks, wait until they have entered, too. */
    private void reach(CudaStream stream) {
        enter();
        boolean isSide = stream == side;
        if (underWay == null || (isSide ? reachedBeside : reached)) {
            return;
        }
        if (isSide) {
            reachedBeside = true;
        } else {
            reached = true;
        }
        signals.awaitEntered(stream, underWay.timeout());
    }

    /**
     * Tells whether the operation under way goes into a CUDA graph.
     *
     * @return whether it does
     */
    boolean isCapturing() {
        return captured;
    }

    /**
     * Enqueues an operation, or records it into a graph.
     *
     * @param operation the operation
     * @param stream the current stream
     * @param captured whether it is recorded
     * @param body enqueues it
     */
    void enqueue(Operation operation, CudaStream stream, boolean captured, Runnable body) {
        underWay = operation;
        running = stream;
        this.captured = captured;
        entered = false;
        entryMarked = false;
        besideUsed = false;
        reached = false;
        reachedBeside = false;
        try {
            body.run();
        } finally {
            underWay = null;
            running = null;
            this.captured = false;
        }
    }

    /** From now on, methods throw. */
    void end() {
        destroyed = true;
    }

    private void requireUsable() {
        if (destroyed) {
            throw GroupErrors.buffersDestroyed();
        }
    }

    @Override
    protected NDArray view(NDManager manager, int peer, Shape shape, ScalarType type, long offset) {
        requireUsable();
        return Torch.view(
                manager, region.memory(peer), region.layout().buffer() + offset, shape, type);
    }

    /** Where a stream is to write into a rank's buffer or heap. */
    long place(CudaStream stream, int peer, long offset, long byteSize) {
        requireUsable();
        checkRange(peer, offset, byteSize);
        if (peer != rank) {
            reach(stream);
        }
        return region.address(peer) + region.layout().buffer() + offset;
    }

    /** Raises this rank's signal on a rank, from a stream. */
    void putSignal(CudaStream stream, int peer, int channel, int value) {
        requireUsable();
        checkRank(peer);
        checkChannel(channel);
        checkEpoch(value);
        enter();
        signals.raise(stream, peer, channel);
    }

    /** Lets a stream wait for a rank's signal. */
    void waitSignal(CudaStream stream, Operation operation, int peer, int channel, int value) {
        requireUsable();
        checkRank(peer);
        await(stream, operation, channel, 1 << peer, value);
    }

    /** Lets a stream wait for the signals of all other ranks. */
    void waitSignals(CudaStream stream, Operation operation, int channel, int value) {
        requireUsable();
        await(stream, operation, channel, (1 << region.ranks()) - 1 & ~(1 << rank), value);
    }

    private void await(CudaStream stream, Operation operation, int channel, int peers, int value) {
        checkChannel(channel);
        checkEpoch(value);
        if (peers != 0) {
            enter();
            if (stream != side && besideUsed && !beside.isOrdered()) {
                markEntry(); // Others may wait for what the side stream is yet to do.
            }
            signals.await(stream, channel, peers, operation.timeout());
        }
    }

    /** What is beyond is what the next operations raise their signals to. */
    private static void checkEpoch(int value) {
        if (value != EPOCH) {
            throw new IllegalArgumentException(
                    "signals are raised to the operation's epoch, "
                            + EPOCH
                            + ", and not to "
                            + value
                            + "; use a channel for each");
        }
    }

    @Override
    public void putSignal(int peer, int channel, int value) {
        requireUsable();
        putSignal(stream(), peer, channel, value);
    }

    @Override
    public void waitSignal(Operation operation, int peer, int channel, int value) {
        requireUsable();
        Required.argument("waitSignal: operation", operation);
        waitSignal(stream(), operation, peer, channel, value);
    }

    /** Returns at once: {@link P2pQueue} has published the call, which is compared behind it. */
    @Override
    public void awaitAgreement(Operation operation) {
        requireUsable();
    }

    @Override
    public void intraNodeBarrier(Operation operation) {
        requireUsable();
        Required.argument("intraNodeBarrier: operation", operation);
        // To wait for others to enter would do, but only if none has done anything before.
        enter();
        signals.meet(stream(), operation.timeout());
        reached = true;
    }

    /** Frees everything but the region. */
    void close() {
        current.free();
        beside.free();
        side.close();
        if (entry != null) {
            entry.close();
        }
    }
}
