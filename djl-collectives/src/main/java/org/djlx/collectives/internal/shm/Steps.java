/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import java.util.List;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.AtomicBuffer;

/**
 * The steps of operations over staging memory, one operation at a time; the first step also checks
 * that all ranks agree on it.
 *
 * <p>In a step every rank may write one of its two staging halves, then reaches a synchronisation
 * and waits for all, then may read everybody's half. Steps alternate between the halves: by the
 * time a rank has waited for the next step, all have finished reading this one, so its half is free
 * for the step after that, and one synchronisation a step is enough.
 */
final class Steps {

    /** What begins on a multiple of this shares no cache line with what lies before it. */
    static final long ALIGNMENT = 64;

    // What is larger gains nothing from sharing a step, and small steps stay in the caches.
    private static final long SHARED_STEP_BYTES = 128 << 10;

    private final ShmSegment segment;
    private final Rendezvous rendezvous;
    private final int rank;
    private final int worldSize;
    private final long[] addresses;
    private Operation operation;
    private boolean begun;

    Steps(ShmSegment segment, Rendezvous rendezvous, int rank, int worldSize) {
        this.segment = segment;
        this.rendezvous = rendezvous;
        this.rank = rank;
        this.worldSize = worldSize;
        this.addresses = new long[worldSize];
    }

    /** To be called before the first step of an operation. */
    void begin(Operation next) {
        operation = next;
        begun = false;
    }

    /** Where this rank writes for the step that comes. */
    long mine() {
        return segment.staging(rank, (rendezvous.epoch() + 1) & 1);
    }

    /** Ends the writing, and waits until all ranks have. */
    void synchronize() {
        if (begun) {
            rendezvous.synchronize(operation);
        } else {
            begun = true;
            rendezvous.begin(operation);
            rendezvous.awaitAgreement(operation);
        }
    }

    /** What a rank wrote for the step that was synchronised last. */
    long of(int peer) {
        return segment.staging(peer, rendezvous.epoch() & 1);
    }

    /** The words at the start of {@link #mine()}. */
    AtomicBuffer myHeader() {
        return segment.header(rank, (rendezvous.epoch() + 1) & 1);
    }

    /** The words at the start of {@link #of}. */
    AtomicBuffer headerOf(int peer) {
        return segment.header(peer, rendezvous.epoch() & 1);
    }

    /**
     * What all ranks wrote for the step that was synchronised last, at an offset; for this rank,
     * which need not have written, another address. The array is the same with each call.
     */
    long[] ofOthers(long offset, long own) {
        for (int peer = 0; peer < worldSize; peer++) {
            addresses[peer] = peer == rank ? own : of(peer) + offset;
        }
        return addresses;
    }

    /** The size of a staging half. */
    long chunkSize() {
        return segment.chunkSize();
    }

    /** The size of each of {@code worldSize} slots of a staging half, after a header. */
    long slotSize(long headerSize) {
        return (segment.chunkSize() - headerSize) / worldSize / ALIGNMENT * ALIGNMENT;
    }

    /** Rounds a size up to a multiple of {@link #ALIGNMENT}. */
    static long aligned(long byteSize) {
        return (byteSize + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /**
     * Tells which of several tensors share a step, one after the other in staging memory, each
     * aligned. The same on all ranks, as it depends on sizes only.
     *
     * @param tensors those that are the same on all ranks
     * @param first the first of the step
     * @param room how much fits
     * @return the one behind the last; {@code first + 1} if that one has its steps for itself
     */
    static int endOfStep(List<HostTensor> tensors, int first, long room) {
        long most = Math.min(room, SHARED_STEP_BYTES);
        long size = 0;
        int end = first;
        while (end < tensors.size() && size + tensors.get(end).byteSize() <= most) {
            size += aligned(tensors.get(end).byteSize());
            end++;
        }
        return Math.max(end, first + 1);
    }
}
