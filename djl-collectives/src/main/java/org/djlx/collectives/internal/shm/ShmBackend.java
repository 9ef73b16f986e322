// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.Optional;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.p2p.P2pBackend;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.cpu.CpuBackend;
import org.djlx.collectives.spi.cpu.MessageChannel;

final class ShmBackend extends CpuBackend implements P2pBackend {

    static final String NAME = "shm";

    private static final int MIN_CHUNK_PER_RANK = 128;

    private final ShmSegment segment;
    private final Rendezvous rendezvous;
    private final Copies copies = new Copies();
    private final ShmP2pBuffers buffers;

    private ShmBackend(GroupContext context, ShmSegment segment, Rendezvous rendezvous) {
        super(NAME, context, rendezvous);
        this.segment = segment;
        this.rendezvous = rendezvous;
        buffers = new ShmP2pBuffers(segment, rendezvous, context.rank());
    }

    static ShmBackend create(GroupContext context) {
        ShmOptions options = options(context.options());
        int rank = context.rank();
        int worldSize = context.worldSize();
        if (options.chunkSize() < (long) worldSize * MIN_CHUNK_PER_RANK) {
            throw new IllegalArgumentException(
                    String.format(
                            "a chunk size of %d bytes is too small for %d ranks: it must be at"
                                    + " least %d bytes; see optChunkSize",
                            options.chunkSize(), worldSize, (long) worldSize * MIN_CHUNK_PER_RANK));
        }
        ShmSegment segment = ShmSegment.map(context, options);
        ShmBackend backend;
        try {
            Rendezvous rendezvous =
                    new Rendezvous(segment.control(), context.name(), rank, worldSize);
            backend = new ShmBackend(context, segment, rendezvous);
        } catch (RuntimeException | Error e) {
            segment.close();
            throw e;
        }
        Steps steps = new Steps(segment, backend.rendezvous, rank, worldSize);
        Copies messages = new Copies();
        backend.start(
                context,
                new ShmCollectives(steps, backend.reducer(), backend.copies, rank, worldSize),
                peer -> channel(segment, rank, peer, messages));
        return backend;
    }

    /** Returns the channel between two ranks, as the first uses it. */
    static MessageChannel channel(ShmSegment segment, int rank, int peer, Copies copies) {
        return new ShmChannel(
                segment.mailbox(peer, rank, copies), segment.mailbox(rank, peer, copies));
    }

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

    @Override
    public Optional<P2pBuffers> p2pBuffers() {
        return segment.bufferSize() + segment.heapSize() == 0
                ? Optional.empty()
                : Optional.of(buffers);
    }

    @Override
    protected void leave() {
        try {
            buffers.close();
        } finally {
            rendezvous.leave();
        }
        segment.close();
    }
}
