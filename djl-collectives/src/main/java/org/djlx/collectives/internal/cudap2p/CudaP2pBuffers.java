/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.BitSet;
import org.djlx.collectives.Operation;
import org.djlx.collectives.P2pBuffers;
import org.djlx.collectives.internal.gpu.CurrentStreams;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * P2P buffers in the memory of GPUs.
 *
 * <p>Signals are raised and awaited by streams, not by the host: the methods of {@link P2pBuffers}
 * do so on the current stream. See {@link #awaitAgreement} on what must come before a wait.
 */
public final class CudaP2pBuffers extends P2pBuffers {

    private final P2pRegion region;
    private final CudaDevice device;
    private final CudaStream side;
    private final CudaStream
            releaser; // made in time: the driver may not make one when streams wait
    private final RankOrderReducer reducer;
    private final HostSync hosts;
    private final CurrentStreams currentStreams;
    private final int rank;
    private int epoch;
    private int barriers;
    private Operation numbered; // the last operation that has an epoch
    private int epochBefore; // when the operation under way began
    private int barriersBefore;
    private Runnable capturedBarrier; // what a barrier is in a graph; null if none is recorded
    private final BitSet capturedChannels = new BitSet(); // on which what is recorded waits
    private volatile boolean destroyed;

    CudaP2pBuffers(
            P2pRegion region,
            CudaDevice device,
            HostSync hosts,
            CurrentStreams currentStreams,
            RankOrderReducer reducer) {
        super(
                region.rank(),
                region.ranks(),
                region.layout().bufferSize(),
                region.layout().heapSize(),
                RegionLayout.CHANNELS);
        this.region = region;
        this.device = device;
        this.hosts = hosts;
        this.currentStreams = currentStreams;
        this.reducer = reducer;
        this.rank = region.rank();
        this.side = CudaStream.create(device, device.highestStreamPriority());
        this.releaser = CudaStream.create(device);
    }

    boolean isInOneProcess() {
        return region.isInOneProcess();
    }

    /**
     * Returns the GPU.
     *
     * @return this rank's GPU
     */
    public CudaDevice device() {
        return device;
    }

    /**
     * Returns a stream on which data can be sent beside the current one.
     *
     * @return the stream, of high priority; it belongs to the group
     */
    public CudaStream stream() {
        return side;
    }

    /**
     * Returns what reduces parts on this GPU.
     *
     * @return the reducer
     */
    public RankOrderReducer reducer() {
        return reducer;
    }

    /**
     * Returns the calling thread's current stream.
     *
     * @return the stream, not to be closed
     */
    public CudaStream currentStream() {
        requireUsable();
        return currentStreams.get();
    }

    @Override
    public int epoch(Operation operation) {
        if (isCapturing()) {
            return 1;
        }
        if (operation != numbered) {
            numbered = operation;
            epoch++;
        }
        return epoch;
    }

    /** To be called before each operation. */
    void begin() {
        epochBefore = epoch;
        barriersBefore = barriers;
    }

    /**
     * To be called when the ranks did not agree on the operation that had begun: some may have
     * raised signals, or even counted. Numbers go on from beyond all of that; so that the halves of
     * the buffers go on in turn, by an even distance from where they were.
     */
    void skip() {
        epoch = epochBefore + 2;
        barriers = barriersBefore + 1;
    }

    /**
     * Tells whether the operation under way goes into a CUDA graph.
     *
     * @return whether it does
     */
    public boolean isCapturing() {
        return capturedBarrier != null;
    }

    /**
     * Records an operation. What a graph replays has the same numbers each time: its signals are on
     * channels of their own, raised to 1 and lowered when all have come, and barriers before it and
     * behind it keep it apart from everything else that uses the buffers.
     *
     * @param stream the stream that is recorded
     * @param barrier enqueues a barrier that can be replayed
     * @param body the operation
     */
    void capture(CudaStream stream, Runnable barrier, Runnable body) {
        capturedBarrier = barrier;
        capturedChannels.clear();
        try {
            barrier.run();
            body.run();
            capturedChannels.stream().forEach(channel -> lower(stream, row(channel)));
            barrier.run();
        } finally {
            capturedBarrier = null;
        }
    }

    private void lower(CudaStream stream, int row) {
        for (int peer = 0; peer < region.ranks(); peer++) {
            long word = region.layout().signal(row, peer);
            stream.writeValue32(region.address(rank) + word, 0);
        }
    }

    /** Where the signals of a channel are. */
    private int row(int channel) {
        return isCapturing() ? RegionLayout.CAPTURED + channel : channel;
    }

    /** From now on, methods throw. */
    void end() {
        destroyed = true;
    }

    private void requireUsable() {
        if (destroyed) {
            throw new IllegalStateException(
                    "the group of these P2P buffers has been destroyed; get those of another");
        }
    }

    @Override
    protected NDArray view(NDManager manager, int peer, Shape shape, ScalarType type, long offset) {
        requireUsable();
        return Torch.view(
                manager, region.memory(peer), region.layout().buffer() + offset, shape, type);
    }

    /**
     * Returns the size of an array.
     *
     * @param array a contiguous array
     * @return the size of its elements, in bytes
     */
    public static long byteSize(NDArray array) {
        return array.getShape().size() * Torch.scalarType(array).itemSize();
    }

    /**
     * Copies an array into a rank's P2P memory, by a copy engine.
     *
     * @param stream where it is enqueued; the array must live until it has been copied
     * @param peer whose memory
     * @param offset where in it, in bytes from the start of the buffer
     * @param source the array, contiguous
     * @throws IllegalArgumentException if the array does not fit into the buffer and the heap
     */
    public void put(CudaStream stream, int peer, long offset, NDArray source) {
        requireUsable();
        long byteSize = byteSize(source);
        checkRange(peer, offset, byteSize);
        stream.copyAsync(
                region.address(peer) + region.layout().buffer() + offset,
                Torch.dataPointer(source),
                byteSize);
    }

    /**
     * Raises this rank's signal on a rank, from a stream.
     *
     * @param stream where it is enqueued
     * @param peer the rank that waits for it
     * @param channel the channel
     * @param value the word's new value
     */
    public void putSignal(CudaStream stream, int peer, int channel, int value) {
        requireUsable();
        checkRank(peer);
        checkChannel(channel);
        raise(stream, peer, row(channel), value);
    }

    private void raise(CudaStream stream, int peer, int row, int value) {
        stream.writeValue32(region.address(peer) + region.layout().signal(row, rank), value);
    }

    /**
     * Lets a stream wait for a rank's signal.
     *
     * @param stream where it is enqueued
     * @param peer the rank that raises it
     * @param channel the channel
     * @param value the value to wait for
     */
    public void waitSignal(CudaStream stream, int peer, int channel, int value) {
        requireUsable();
        checkRank(peer);
        checkChannel(channel);
        if (isCapturing()) {
            capturedChannels.set(channel);
        }
        await(stream, peer, row(channel), value);
    }

    private void await(CudaStream stream, int peer, int row, int value) {
        stream.waitValue32(region.address(rank) + region.layout().signal(row, peer), value);
    }

    @Override
    public void putSignal(int peer, int channel, int value) {
        putSignal(currentStream(), peer, channel, value);
    }

    @Override
    public void waitSignal(Operation operation, int peer, int channel, int value) {
        waitSignal(currentStream(), peer, channel, value);
    }

    /**
     * Waits until the hosts of all ranks have enqueued what they send in this operation; to be
     * called when this rank has, and before it lets a stream wait for a signal. So whatever a
     * stream waits for is on its way: a rank whose host stands still, because the driver takes
     * memory or loads a kernel and waits for all streams to do so, waits for nothing that depends
     * on itself.
     */
    @Override
    public void awaitAgreement(Operation operation) {
        hosts.agree(operation);
    }

    @Override
    public void intraNodeBarrier(Operation operation) {
        requireUsable();
        if (isCapturing()) {
            awaitAgreement(operation);
            capturedBarrier.run();
            return;
        }
        barriers++;
        CudaStream stream = currentStream();
        for (int peer = 0; peer < region.ranks(); peer++) {
            raise(stream, peer, RegionLayout.BARRIER, barriers);
        }
        awaitAgreement(operation);
        for (int peer = 0; peer < region.ranks(); peer++) {
            await(stream, peer, RegionLayout.BARRIER, barriers);
        }
    }

    /**
     * Lets all streams go on that wait for signals, as the ranks that would raise them are gone.
     */
    void release() {
        release(0);
    }

    /** Lets what graphs replay go on, as far as it waits now. */
    void releaseReplays() {
        release(RegionLayout.CAPTURED);
    }

    private void release(int firstRow) {
        for (int row = firstRow; row < RegionLayout.ROWS; row++) {
            int last = row == RegionLayout.BARRIER ? barriers : epoch;
            for (int peer = 0; peer < region.ranks(); peer++) {
                long word = region.address(rank) + region.layout().signal(row, peer);
                releaser.writeValue32(word, last + 1);
            }
        }
    }

    void close() {
        side.close();
        releaser.close();
        reducer.close();
        region.retire(hosts);
    }
}
