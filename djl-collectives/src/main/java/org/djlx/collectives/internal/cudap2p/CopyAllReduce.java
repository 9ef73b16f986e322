/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.ScalarType;

/**
 * All-reduces of one rank by copy engines, on the group's stream and two beside it, one at a time.
 *
 * <p>A tensor is divided into pieces, and a piece into a part for each rank. Of every piece, the
 * group's stream copies the parts into their ranks' slots; the second stream waits for the parts
 * that have come here, adds them up, and copies the sum into slots of all ranks; the third waits
 * for the sums of the others, and copies them into the tensor. So a piece is sent while the one
 * before it is added up. There are two halves of slots, in turn: a stream writes into a half when
 * its rank has said that it has read the piece before the last.
 */
final class CopyAllReduce implements AutoCloseable {

    private static final int PACK = 16; // bytes: parts begin at whole ones

    // Channels of signals, which say up to which piece that is so.
    private static final int PARTS_SENT = RegionLayout.COPIES;
    private static final int PARTS_READ = RegionLayout.COPIES + 1;
    private static final int SUMS_SENT = RegionLayout.COPIES + 2;
    private static final int SUMS_READ = RegionLayout.COPIES + 3;

    private final P2pRegion region;
    private final RegionLayout layout;
    private final AllReduceKernels kernels;
    private final SignalWaits waits;
    private final int rank;
    private final int ranks;
    private final CudaStream adding;
    private final CudaStream taking;
    private final CudaEvent begun;
    private final CudaEvent added;
    private final CudaEvent taken;
    private int piece; // the number of the last one; guarded by this
    private boolean ended; // guarded by this

    CopyAllReduce(
            P2pRegion region, CudaDevice device, AllReduceKernels kernels, SignalWaits waits) {
        this.region = region;
        this.layout = region.layout();
        this.kernels = kernels;
        this.waits = waits;
        rank = region.rank();
        ranks = region.ranks();
        int priority = device.highestStreamPriority();
        adding = CudaStream.create(device, priority);
        taking = CudaStream.create(device, priority);
        begun = CudaEvent.create(device);
        added = CudaEvent.create(device);
        taken = CudaEvent.create(device);
    }

    /**
     * Enqueues an all-reduce in place.
     *
     * @param stream where
     * @param address the tensor, aligned to its elements
     * @param count its elements
     * @param type their type, which has a kernel
     * @param divisor what the sum is divided by
     * @param timeout how long each wait for other ranks may take
     */
    synchronized void enqueue(
            CudaStream stream,
            long address,
            long count,
            ScalarType type,
            float divisor,
            Duration timeout) {
        if (ended) {
            throw GroupErrors.buffersDestroyed();
        }
        begun.record(stream);
        adding.waitEvent(begun);
        taking.waitEvent(begun);
        long byteSize = count * type.itemSize();
        long most = layout.most(Algorithm.COPY_ENGINE);
        for (long done = 0; done < byteSize; done += most) {
            piece++;
            Piece next =
                    new Piece(address + done, Math.min(most, byteSize - done), piece & 1, timeout);
            next.send(stream);
            next.add(type, divisor);
            next.take();
        }
        added.record(adding);
        stream.waitEvent(added);
        taken.record(taking);
        stream.waitEvent(taken);
    }

    /** A piece of a tensor. */
    private final class Piece {

        private final long address;
        private final long byteSize;
        private final long partSize;
        private final int half;
        private final Duration timeout;

        Piece(long address, long byteSize, int half, Duration timeout) {
            this.address = address;
            this.byteSize = byteSize;
            this.half = half;
            this.timeout = timeout;
            partSize = ((byteSize + ranks - 1) / ranks + PACK - 1) / PACK * PACK;
        }

        private long part(int of) {
            return address + of * partSize;
        }

        /** The bytes of a rank's part, of which the last ones may have fewer, or none. */
        private long size(int of) {
            return Math.max(0, Math.min(partSize, byteSize - of * partSize));
        }

        void send(CudaStream stream) {
            await(stream, PARTS_READ, piece - 2, timeout);
            for (int step = 1; step < ranks; step++) {
                int peer = (rank + step) % ranks;
                long slot = region.address(peer) + layout.copySlot(false, half, peer, rank);
                copy(stream, slot, part(peer), size(peer));
                raise(stream, peer, PARTS_SENT);
            }
        }

        void add(ScalarType type, float divisor) {
            await(adding, PARTS_SENT, piece, timeout);
            if (size(rank) > 0) {
                long slots = region.address(rank) + layout.copySlot(false, half, rank, first());
                long count = size(rank) / type.itemSize();
                kernels.sum(adding, part(rank), count, type, slots, divisor);
            }
            for (int step = 1; step < ranks; step++) {
                raise(adding, (rank + step) % ranks, PARTS_READ);
            }
            await(adding, SUMS_READ, piece - 2, timeout);
            for (int step = 1; step < ranks; step++) {
                int peer = (rank + step) % ranks;
                long slot = region.address(peer) + layout.copySlot(true, half, peer, rank);
                copy(adding, slot, part(rank), size(rank));
                raise(adding, peer, SUMS_SENT);
            }
        }

        void take() {
            await(taking, SUMS_SENT, piece, timeout);
            for (int step = 1; step < ranks; step++) {
                int peer = (rank + step) % ranks;
                long slot = region.address(rank) + layout.copySlot(true, half, rank, peer);
                copy(taking, part(peer), slot, size(peer));
            }
            for (int step = 1; step < ranks; step++) {
                raise(taking, (rank + step) % ranks, SUMS_READ);
            }
        }
    }

    /** The first of the other ranks. */
    private int first() {
        return rank == 0 ? 1 : 0;
    }

    private static void copy(CudaStream stream, long to, long from, long byteSize) {
        if (byteSize > 0) {
            stream.copyAsync(to, from, byteSize);
        }
    }

    private void raise(CudaStream stream, int peer, int channel) {
        stream.writeValue32(region.address(peer) + layout.signal(channel, rank), piece);
    }

    private void await(CudaStream stream, int channel, int value, Duration timeout) {
        long words = region.address(rank) + layout.signal(channel, 0);
        int others = (1 << ranks) - 1 & ~(1 << rank);
        waits.enqueue(stream, words, RegionLayout.LINE, others, value, timeout);
    }

    /** From now on nothing is enqueued. */
    synchronized void end() {
        ended = true;
    }

    /** Frees everything, when nothing is enqueued any more. */
    @Override
    public void close() {
        adding.close();
        taking.close();
        begun.close();
        added.close();
        taken.close();
    }
}
