// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.Supplier;
import org.djlx.collectives.internal.host.ControlBlock;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * P2P buffers in shared memory. They may be used while another thread destroys the group: the
 * memory stays until all running methods have returned; later calls throw.
 */
final class ShmP2pBuffers extends P2pBuffers {

    private final ReentrantReadWriteLock use = new ReentrantReadWriteLock();
    private boolean closed; // guarded by use

    private final ShmSegment segment;
    private final Rendezvous rendezvous;

    ShmP2pBuffers(ShmSegment segment, Rendezvous rendezvous, int rank) {
        super(
                rank,
                segment.worldSize(),
                segment.bufferSize(),
                segment.heapSize(),
                ControlBlock.CHANNELS);
        this.segment = segment;
        this.rendezvous = rendezvous;
    }

    @Override
    protected NDArray view(NDManager manager, int rank, Shape shape, ScalarType type, long offset) {
        return use(
                () ->
                        Torch.view(
                                manager,
                                segment.memory(),
                                segment.bufferOffset(rank) + offset,
                                shape,
                                type));
    }

    /** The operation's sequence number: equal on all ranks, even after a mismatch. */
    @Override
    public long epoch(Operation operation) {
        return Required.argument("epoch: operation", operation).sequence();
    }

    @Override
    public void putSignal(int rank, int channel, long epoch) {
        checkRank(rank);
        checkChannel(channel);
        use(() -> rendezvous.signal(rank, channel, epoch));
    }

    @Override
    public void waitSignal(Operation operation, int rank, int channel, long epoch) {
        checkRank(rank);
        checkChannel(channel);
        Required.argument("waitSignal: operation", operation);
        use(() -> rendezvous.awaitSignal(operation, rank, channel, epoch));
    }

    @Override
    public void awaitAgreement(Operation operation) {
        Required.argument("awaitAgreement: operation", operation);
        use(() -> rendezvous.awaitAgreement(operation));
    }

    @Override
    public void intraNodeBarrier(Operation operation) {
        Required.argument("intraNodeBarrier: operation", operation);
        use(
                () -> {
                    rendezvous.awaitAgreement(operation);
                    rendezvous.synchronize(operation);
                });
    }

    @Override
    protected void barrier(Operation operation, int[] ranks) {
        use(() -> rendezvous.meet(operation, ranks));
    }

    private void use(Runnable action) {
        use(
                () -> {
                    action.run();
                    return null;
                });
    }

    private <T> T use(Supplier<T> action) {
        use.readLock().lock();
        try {
            if (closed) {
                throw GroupErrors.buffersDestroyed();
            }
            return action.get();
        } finally {
            use.readLock().unlock();
        }
    }

    /** Waits until no method uses the memory; called after the rendezvous is closed. */
    void close() {
        use.writeLock().lock();
        closed = true;
        use.writeLock().unlock();
    }
}
