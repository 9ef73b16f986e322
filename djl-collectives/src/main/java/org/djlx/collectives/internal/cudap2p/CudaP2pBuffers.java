/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Optional;
import java.util.function.BiConsumer;
import java.util.stream.IntStream;
import org.djlx.collectives.KernelSignals;
import org.djlx.collectives.OneShotSlots;
import org.djlx.collectives.Operation;
import org.djlx.collectives.P2pBuffers;
import org.djlx.collectives.P2pStream;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Words;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.Required;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.CurrentStreams;
import org.djlx.nativeops.GpuTopology;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * P2P buffers in the memory of GPUs. Signals are raised and awaited by streams, not by the host:
 * the methods of {@link P2pBuffers} do so on the current stream.
 */
final class CudaP2pBuffers extends P2pBuffers {

    // Of each rank's flags, how many bytes a barrier lowers: what few operations exceed.
    private static final long LOWERED = 32 << 10;

    private final P2pRegion region;
    private final CudaStream side;
    private final SignalWaits waits;
    private final CurrentStreams currentStreams;
    private final CudaP2pStream current = new CudaP2pStream(this);
    private final CudaP2pStream beside = new CudaP2pStream(this);
    private final int rank;
    private final KernelSignals kernelSignals; // null if kernels have none
    private final KernelSignals recordedSignals; // and for operations that are recorded
    private final OneShotSlots oneShotSlots; // null if there are none
    private int recordedFlags; // how many flags what is recorded raises
    private boolean recorded; // whether some operation ever was
    private int epoch;
    private int barriers;
    private Operation numbered; // the last operation that has an epoch
    private CudaStream running; // the current stream, of the operation that is enqueued, or null
    private Runnable capturedBarrier; // what a barrier is in a graph; null if none is recorded
    private Runnable opening; // what goes before the operation's use of signals; null if nothing
    private volatile boolean destroyed;

    CudaP2pBuffers(
            P2pRegion region,
            CudaDevice device,
            CurrentStreams currentStreams,
            SignalWaits waits,
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
        this.waits = waits;
        kernelSignals = kernelBlocks == 0 ? null : kernelSignals(kernelBlocks, false);
        recordedSignals = kernelBlocks == 0 ? null : kernelSignals(kernelBlocks, true);
        boolean linked = region.links().kind() == GpuTopology.Kind.FULLY_CONNECTED_NVLINK;
        oneShotSlots = kernelBlocks == 0 || !linked ? null : oneShotSlots(kernelBlocks);
    }

    private KernelSignals kernelSignals(int blocks, boolean recorded) {
        RegionLayout layout = region.layout();
        int ranks = region.ranks();
        long[] words = new long[ranks];
        long[] flags = new long[ranks];
        for (int peer = 0; peer < ranks; peer++) {
            long memory = region.address(peer);
            words[peer] = memory + layout.signal(recorded ? RegionLayout.CAPTURED : 0, 0);
            flags[peer] = memory + layout.flags(recorded, ranks);
        }
        return new KernelSignals(
                blocks,
                waits.status(),
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
                waits.status(),
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
    public Optional<KernelSignals> kernelSignals(int flags) {
        requireUsable();
        if (!isCapturing()) {
            return Optional.ofNullable(kernelSignals);
        }
        recordedFlags = Math.max(recordedFlags, flags);
        return Optional.ofNullable(recordedSignals);
    }

    @Override
    public P2pStream currentStream(Operation operation) {
        requireUsable();
        Required.argument("currentStream: operation", operation);
        return current.on(running == null ? currentStreams.get() : running, operation);
    }

    @Override
    public P2pStream sideStream(Operation operation) {
        requireUsable();
        Required.argument("sideStream: operation", operation);
        open(); // What it waits for on the current stream is to include the barrier.
        return beside.on(side, operation);
    }

    @Override
    public int epoch(Operation operation) {
        open();
        if (isCapturing()) {
            return 1;
        }
        if (operation != numbered) {
            numbered = operation;
            epoch++;
        }
        return epoch;
    }

    /**
     * Tells whether the operation under way goes into a CUDA graph.
     *
     * @return whether it does
     */
    boolean isCapturing() {
        return capturedBarrier != null;
    }

    /**
     * Enqueues an operation. If one was ever recorded, which is so on all ranks, graphs may have
     * been replayed before this one: then it begins with a barrier, unless it uses no signals.
     *
     * @param stream the current stream
     * @param barriers enqueues barriers
     * @param body the operation
     */
    void enqueue(CudaStream stream, BiConsumer<Words, Words> barriers, Runnable body) {
        running = stream;
        opening = recorded ? () -> barriers.accept(Words.NONE, Words.NONE) : null;
        try {
            body.run();
        } finally {
            opening = null;
            running = null;
        }
    }

    /**
     * Records an operation. What a graph replays has the same numbers each time: its signals are on
     * channels of their own and raised to 1. A barrier before it keeps it apart from everything
     * else that uses the buffers, and lowers what the operation before has left raised; unless it
     * uses no signals.
     *
     * @param stream the stream that is recorded
     * @param barriers enqueues barriers that can be replayed
     * @param body the operation
     */
    void capture(CudaStream stream, BiConsumer<Words, Words> barriers, Runnable body) {
        RegionLayout layout = region.layout();
        int ranks = region.ranks();
        long own = region.address(rank);
        long signals = own + layout.signal(RegionLayout.CAPTURED, 0);
        long flags = own + layout.flags(true, ranks);
        long all = RegionLayout.flagBytes(1);
        capturedBarrier = () -> barriers.accept(Words.NONE, Words.NONE);
        opening =
                () -> {
                    recorded = true;
                    long end = own + layout.signal(RegionLayout.ROWS, 0);
                    barriers.accept(
                            new Words(signals, 1, 0, end - signals),
                            new Words(flags, ranks, all, LOWERED));
                };
        recordedFlags = 0;
        try {
            body.run();
            long more = (long) recordedFlags * Integer.BYTES - LOWERED;
            for (int source = 0; source < ranks && more > 0; source++) {
                stream.memsetAsync(flags + source * all + LOWERED, (byte) 0, more);
            }
        } finally {
            opening = null;
            capturedBarrier = null;
        }
    }

    /** Begins the use of signals and halves in the operation that is enqueued. */
    private void open() {
        Runnable first = opening;
        opening = null;
        if (first != null) {
            first.run();
        }
    }

    /** Where the signals of a channel are. */
    private int row(int channel) {
        open();
        return isCapturing() ? RegionLayout.CAPTURED + channel : channel;
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

    /** Where a part of a rank's buffer or heap is. */
    long place(int peer, long offset, long byteSize) {
        requireUsable();
        open();
        checkRange(peer, offset, byteSize);
        return region.address(peer) + region.layout().buffer() + offset;
    }

    /** Raises this rank's signal on a rank, from a stream. */
    void putSignal(CudaStream stream, int peer, int channel, int value) {
        requireUsable();
        checkRank(peer);
        checkChannel(channel);
        raise(stream, peer, row(channel), value);
    }

    private void raise(CudaStream stream, int peer, int row, int value) {
        stream.writeValue32(region.address(peer) + region.layout().signal(row, rank), value);
    }

    /** Lets a stream wait for a rank's signal. */
    void waitSignal(CudaStream stream, Operation operation, int peer, int channel, int value) {
        requireUsable();
        checkRank(peer);
        checkChannel(channel);
        await(stream, operation, channel, 1 << peer, value);
    }

    /** Lets a stream wait for the signals of all other ranks. */
    void waitSignals(CudaStream stream, Operation operation, int channel, int value) {
        requireUsable();
        checkChannel(channel);
        await(stream, operation, channel, others(), value);
    }

    private int others() {
        return (1 << region.ranks()) - 1 & ~(1 << rank);
    }

    private void await(CudaStream stream, Operation operation, int channel, int peers, int value) {
        awaitRow(stream, operation, row(channel), peers, value);
    }

    private void awaitRow(CudaStream stream, Operation operation, int row, int peers, int value) {
        if (peers != 0) {
            long words = region.address(rank) + region.layout().signal(row, 0);
            waits.enqueue(stream, words, RegionLayout.LINE, peers, value, operation.timeout());
        }
    }

    @Override
    public void putSignal(int peer, int channel, int value) {
        requireUsable();
        putSignal(currentStreams.get(), peer, channel, value);
    }

    @Override
    public void waitSignal(Operation operation, int peer, int channel, int value) {
        requireUsable();
        Required.argument("waitSignal: operation", operation);
        waitSignal(currentStreams.get(), operation, peer, channel, value);
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
        open();
        if (isCapturing()) {
            capturedBarrier.run();
            return;
        }
        barriers++;
        CudaStream stream = currentStreams.get();
        for (int peer = 0; peer < region.ranks(); peer++) {
            raise(stream, peer, RegionLayout.BARRIER, barriers);
        }
        awaitRow(stream, operation, RegionLayout.BARRIER, others(), barriers);
    }

    /** Frees everything but the region. */
    void close() {
        current.free();
        beside.free();
        side.close();
    }
}
