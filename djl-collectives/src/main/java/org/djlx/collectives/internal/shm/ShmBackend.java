// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import ai.djl.ndarray.NDArray;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.internal.cpu.CpuBackend;
import org.djlx.collectives.internal.cpu.HostCollectives;
import org.djlx.collectives.internal.cpu.MessageQueue;
import org.djlx.collectives.internal.cpu.OpQueue;
import org.djlx.collectives.internal.cpu.Reducer;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.p2p.P2pBackend;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;

/** The {@code shm} backend of one rank. */
final class ShmBackend extends CpuBackend implements P2pBackend {

    static final String NAME = "shm";

    private static final int MIN_CHUNK_PER_RANK = 128;

    private final ShmSegment segment;
    private final Rendezvous rendezvous;
    private final OpQueue queue;
    private final Copies copies = new Copies();
    private final Reducer reducer;
    private final MessageQueue messages;
    private final ShmP2pBuffers buffers;
    private boolean closed;

    private ShmBackend(GroupContext context, ShmSegment segment) {
        super(NAME + "-" + context.name() + "-" + context.rank());
        int rank = context.rank();
        int worldSize = context.worldSize();
        this.segment = segment;
        rendezvous = new Rendezvous(segment.control(), context.name(), rank, worldSize);
        reducer = new Reducer(manager);
        Steps steps = new Steps(segment, rendezvous, rank, worldSize);
        messages = messages(segment, rendezvous, context.name(), rank);
        buffers = new ShmP2pBuffers(segment, rendezvous, rank);
        queue =
                new OpQueue(
                        "shm-" + context.name() + "-rank-" + rank,
                        rendezvous,
                        Rendezvous.ranksPerCore(worldSize));
        HostCollectives collectives = new ShmCollectives(steps, reducer, copies, rank, worldSize);
        start(rendezvous, collectives, queue, messages);
    }

    static ShmBackend create(GroupContext context) {
        ShmOptions options = options(context.options());
        int worldSize = context.worldSize();
        if (options.chunkSize() < (long) worldSize * MIN_CHUNK_PER_RANK) {
            throw new IllegalArgumentException(
                    String.format(
                            "a chunk size of %d bytes is too small for %d ranks: it must be at"
                                    + " least %d bytes; see optChunkSize",
                            options.chunkSize(), worldSize, (long) worldSize * MIN_CHUNK_PER_RANK));
        }
        ShmSegment segment = ShmSegment.map(context, options);
        ShmBackend backend = null;
        try {
            backend = new ShmBackend(context, segment);
            // The last synchronisation does not use the store: after it, no peer needs the store,
            // so this rank may close the store's server.
            Operation joining = context.joining();
            backend.rendezvous.begin(joining);
            backend.rendezvous.awaitAgreement(joining);
            return backend;
        } catch (RuntimeException | Error e) {
            if (backend == null) {
                segment.close();
            } else {
                backend.close();
            }
            throw e;
        }
    }

    /** Creates the messages of one rank. */
    static MessageQueue messages(
            ShmSegment segment, Rendezvous rendezvous, String group, int rank) {
        Copies copies = new Copies();
        return new MessageQueue(
                "shm-" + group + "-rank-" + rank + "-p2p",
                rendezvous,
                peer ->
                        new ShmChannel(
                                segment.mailbox(peer, rank, copies),
                                segment.mailbox(rank, peer, copies)));
    }

    /** Converts the user's options to this backend's options. */
    static ShmOptions options(BackendOptions options) {
        if (options instanceof ShmOptions shmOptions) {
            return shmOptions;
        }
        if (options.getClass() != BackendOptions.class) {
            throw new IllegalArgumentException(
                    "backend '%s' needs ShmOptions or BackendOptions, but got %s"
                            .formatted(NAME, options.getClass().getSimpleName()));
        }
        return ShmOptions.builder().optCommon(options).build();
    }

    @Override
    public String name() {
        return NAME;
    }

    /**
     * Returns the number of bytes that collectives have copied between tensors and shared memory.
     */
    long copiedBytes() {
        return copies.bytes();
    }

    /** Returns how often this rank has synchronised with all peers. */
    int steps() {
        return rendezvous.epoch();
    }

    /** Returns the arrays that operations hold. */
    List<NDArray> heldArrays() {
        return manager.getManagedArrays();
    }

    @Override
    public Optional<P2pBuffers> p2pBuffers() {
        return segment.bufferSize() + segment.heapSize() == 0
                ? Optional.empty()
                : Optional.of(buffers);
    }

    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        // On any failure, still stop all threads and announce that this rank has left.
        try {
            rendezvous.close();
        } finally {
            try {
                queue.close();
            } finally {
                try {
                    messages.close();
                } finally {
                    try {
                        buffers.close();
                    } finally {
                        rendezvous.leave();
                    }
                }
            }
        }
        reducer.close();
        manager.close();
        segment.close();
    }
}
