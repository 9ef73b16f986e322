// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.gpu.Connection;
import org.djlx.collectives.internal.gpu.QueuedWork;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.nccl.NcclCommunicator;
import org.djlx.nativeops.nccl.NcclGroup;

/**
 * A communicator of NCCL as the connection of a queue.
 *
 * <p>When NCCL first runs an algorithm, it may set up connections and wait for other ranks. Its
 * choice of an algorithm depends on the type of an operation, its root and its size. So an
 * operation can be launched without waiting only if an earlier operation had the same type and
 * root, and a size between the same powers of two.
 */
final class NcclConnection implements Connection {

    /**
     * Compares operations with the other ranks' operations before they are launched.
     *
     * @param concerns whether an operation must be compared
     * @param verify as {@link Connection#startVerification}
     */
    record Verifier(Predicate<QueuedWork> concerns, Function<QueuedWork, Runnable> verify) {}

    private static final int ROOT_WORD = 4; // of a signature

    private final Supplier<NcclCommunicator> connector;
    private final Verifier verifier;
    private final Consumer<CollectiveException> beforeAbort;
    private final Set<Long> launched = new HashSet<>(); // kinds; guarded by the queue's lock
    private volatile NcclCommunicator communicator;

    /**
     * Creates a connection that is not connected yet.
     *
     * @param connector creates the communicator, waiting for other ranks; runs once
     * @param verifier compares operations before they are launched; null to compare none
     * @param beforeAbort called with the reason before an abort
     */
    NcclConnection(
            Supplier<NcclCommunicator> connector,
            Verifier verifier,
            Consumer<CollectiveException> beforeAbort) {
        this.connector = connector;
        this.verifier = verifier;
        this.beforeAbort = beforeAbort;
    }

    /** Uses an existing communicator instead of creating one. */
    void adopt(NcclCommunicator nccl) {
        communicator = nccl;
    }

    /** Returns the communicator; null if not connected. */
    NcclCommunicator communicator() {
        return communicator;
    }

    @Override
    public boolean connect() {
        if (communicator != null) {
            return false;
        }
        communicator = connector.get();
        return true;
    }

    @Override
    public boolean isReady(List<QueuedWork> unit) {
        boolean first = launched.add(kind(unit));
        return !first && communicator != null;
    }

    /** Returns a number for the connections that operations need if launched together. */
    private static long kind(List<QueuedWork> unit) {
        long kind = 0;
        for (QueuedWork work : unit) {
            kind = kind * 31 + kind(work.operation());
        }
        return kind;
    }

    private static long kind(Operation operation) {
        long root = operation.signature()[ROOT_WORD] >>> 32;
        int size = Long.SIZE - Long.numberOfLeadingZeros(operation.byteSize());
        return root << 32 | operation.type().hashCode() * 64L + size & 0xffffffffL;
    }

    @Override
    public boolean isToBeVerified(QueuedWork work) {
        return verifier != null && verifier.concerns().test(work);
    }

    @Override
    public Runnable startVerification(QueuedWork work) {
        return verifier.verify().apply(work);
    }

    @Override
    public void launchTogether(Runnable launches) {
        NcclGroup.run(launches);
    }

    @Override
    public Optional<String> error() {
        NcclCommunicator nccl = communicator;
        return nccl == null
                ? Optional.empty()
                : nccl.asyncError().map(text -> "NCCL reports an error: " + text);
    }

    @Override
    public String hint() {
        return "; NCCL does not tell which ranks did not arrive, TORCH_DISTRIBUTED_DEBUG=DETAIL"
                + " does";
    }

    @Override
    public void aborting(CollectiveException reason) {
        beforeAbort.accept(reason);
    }

    @Override
    public void abort() {
        NcclCommunicator nccl = communicator;
        if (nccl != null) {
            nccl.abort();
        }
    }

    /**
     * With ranks in several processes, NCCL waits until the other ranks of this host close, too.
     */
    @Override
    public void close() {
        NcclCommunicator nccl = communicator;
        if (nccl != null) {
            nccl.close();
        }
    }
}
