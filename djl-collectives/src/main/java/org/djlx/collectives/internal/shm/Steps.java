// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.cpu.HostTensor;
import org.djlx.nativeops.host.AtomicBuffer;

/**
 * The steps of an operation over staging memory, one operation at a time. The first step also
 * compares the ranks' calls.
 *
 * <pre>
 *   step n      write own half n % 2 | synchronise | read the halves n % 2 of all ranks
 *   step n + 1  write own half (n + 1) % 2 | synchronise | read ...
 * </pre>
 *
 * <p>Invariant: after the synchronisation of step n + 1, all ranks have finished reading in step n.
 * So half n % 2 is free for step n + 2, and one synchronisation per step is enough.
 */
final class Steps {

    /** The size of a cache line in bytes. */
    static final long ALIGNMENT = 64;

    // Tensors share a step up to this size: sharing larger steps gains nothing, and smaller steps
    // stay in the caches.
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

    /** Publishes an operation without steps, and does not wait. */
    void publish(Operation next) {
        rendezvous.begin(next);
    }

    /** Starts an operation; called before its first step. */
    void begin(Operation next) {
        operation = next;
        begun = false;
    }

    /** Returns the address of the half that this rank writes in the next step. */
    long mine() {
        return segment.staging(rank, (rendezvous.epoch() + 1) & 1);
    }

    /** Ends the writing of a step, and waits for all ranks. */
    void synchronize() {
        if (begun) {
            rendezvous.synchronize(operation);
        } else {
            begun = true;
            rendezvous.begin(operation);
            rendezvous.awaitAgreement(operation);
        }
    }

    /** Returns the address of the half that a rank wrote in the last synchronised step. */
    long of(int peer) {
        return segment.staging(peer, rendezvous.epoch() & 1);
    }

    /** Returns the words at the start of {@link #mine()}. */
    AtomicBuffer myHeader() {
        return segment.header(rank, (rendezvous.epoch() + 1) & 1);
    }

    /** Returns the words at the start of {@link #of}. */
    AtomicBuffer headerOf(int peer) {
        return segment.header(peer, rendezvous.epoch() & 1);
    }

    /**
     * Returns, by rank, the address at an offset in the half of the last synchronised step; for
     * this rank, {@code own}. The array is reused by the next call.
     */
    long[] ofOthers(long offset, long own) {
        for (int peer = 0; peer < worldSize; peer++) {
            addresses[peer] = peer == rank ? own : of(peer) + offset;
        }
        return addresses;
    }

    /** Returns the size of a staging half. */
    long chunkSize() {
        return segment.chunkSize();
    }

    /** Returns the size of each of {@code worldSize} slots in a staging half, after a header. */
    long slotSize(long headerSize) {
        return (segment.chunkSize() - headerSize) / worldSize / ALIGNMENT * ALIGNMENT;
    }

    /** Rounds a size up to a multiple of {@link #ALIGNMENT}. */
    static long aligned(long byteSize) {
        return (byteSize + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /**
     * The elements of a tensor that a step moves.
     *
     * @param index the tensor's index among those of the operation
     * @param offset where the elements begin in the tensor, in bytes
     * @param count the number of elements
     * @param at where they begin in a staging half, or in a slot of one, in bytes
     */
    record Piece(int index, HostTensor tensor, long offset, long count, long at) {

        long address() {
            return tensor.address() + offset;
        }

        long byteSize() {
            return count * tensor.type().itemSize();
        }
    }

    /**
     * Runs an operation in steps, and calls {@code step} with the pieces of each. Small tensors
     * share a step: they lie one after the other, aligned, in the room of staging memory, in bytes.
     * The pieces are the same on all ranks, because they depend on sizes only. A tensor without
     * elements has a piece, too.
     */
    void run(Operation next, List<HostTensor> tensors, long room, Consumer<List<Piece>> step) {
        begin(next);
        long most = Math.min(room, SHARED_STEP_BYTES);
        List<Piece> shared = new ArrayList<>(tensors.size());
        long at = 0;
        for (int i = 0; i < tensors.size(); i++) {
            HostTensor tensor = tensors.get(i);
            if (!shared.isEmpty() && at + tensor.byteSize() > most) {
                step.accept(shared);
                shared.clear();
                at = 0;
            }
            if (tensor.byteSize() <= most) {
                shared.add(new Piece(i, tensor, 0, tensor.count(), at));
                at += aligned(tensor.byteSize());
                continue;
            }
            long itemSize = tensor.type().itemSize();
            long chunk = room / itemSize;
            for (long done = 0; done < tensor.count(); done += chunk) {
                long count = Math.min(chunk, tensor.count() - done);
                step.accept(List.of(new Piece(i, tensor, done * itemSize, count, 0)));
            }
        }
        if (!shared.isEmpty()) {
            step.accept(shared);
        }
    }

    /** Runs an operation in steps: stages each piece of a step, synchronises, and collects each. */
    void run(
            Operation next,
            List<HostTensor> tensors,
            long room,
            Consumer<Piece> stage,
            Consumer<Piece> collect) {
        run(
                next,
                tensors,
                room,
                pieces -> {
                    pieces.forEach(stage);
                    synchronize();
                    pieces.forEach(collect);
                });
    }
}
