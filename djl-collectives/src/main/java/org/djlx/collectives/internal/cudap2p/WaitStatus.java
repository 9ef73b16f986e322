// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.List;
import java.util.Optional;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.p2p.SplitError;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Words of pinned memory that the host shares with the kernels of one rank: {@code struct Status}
 * of {@code signal.cuh}. With one, the host ends all waits; with the others, kernels report a
 * missing rank or refused splits. Thread-safe.
 */
final class WaitStatus implements AutoCloseable {

    private static final KernelConstants.Layout STATUS =
            new KernelConstants(KernelSource.ofResource(NativeLibrary.class, "signals/signals.cu"))
                    .struct("Status");
    private static final int STOP = STATUS.offset("stop");
    private static final int MISSING = STATUS.offset("missing");
    private static final int REFUSED = STATUS.offset("refused");
    private static final int INDEX = STATUS.offset("refused_index");
    private static final int VALUE = STATUS.offset("refused_value");
    private static final int LIMIT = STATUS.offset("refused_limit");
    private static final int BYTES = 64;

    private final int rank;
    private final NativeMemory memory;
    private final AtomicBuffer words;
    private boolean closed; // guarded by this
    private boolean failed; // a wait had failed when this was closed; guarded by this

    WaitStatus(CudaDevice device, int rank) {
        this.rank = rank;
        memory = CudaMemory.allocatePinned(device, BYTES);
        words = new AtomicBuffer(memory, 0, BYTES);
        words.putIntVolatile(STOP, 0);
        words.putIntVolatile(MISSING, 0);
        words.putIntVolatile(REFUSED, 0);
    }

    /** Returns the address that kernels use. */
    long address() {
        return memory.address();
    }

    /** Ends all waits of kernels for other ranks, now and later. */
    synchronized void stop() {
        if (!closed) {
            words.putIntVolatile(STOP, 1);
        }
    }

    /** Returns the rank that did not arrive within a kernel's timeout, or an empty list. */
    List<Integer> missing() {
        int missing = words.getIntVolatile(MISSING);
        return missing == 0 ? List.of() : List.of(missing - 1);
    }

    /** Returns why a kernel of this rank refused splits, or null. */
    private String refusal() {
        int reason = words.getIntVolatile(REFUSED);
        return reason == 0
                ? null
                : SplitError.values()[reason - 1].message(
                        words.getIntVolatile(INDEX), words.getLong(VALUE), words.getLong(LIMIT));
    }

    /** Returns an error of the kernels, if there is one. */
    Optional<String> error() {
        List<Integer> missing = missing();
        return missing.isEmpty()
                ? Optional.ofNullable(refusal()).map(text -> "rank " + rank + ": " + text)
                : Optional.of(GroupErrors.ranks(missing) + " did not arrive");
    }

    /** Returns whether a wait of a kernel has failed; also after {@link #close}. */
    synchronized boolean hasFailed() {
        return closed ? failed : !missing().isEmpty();
    }

    /** Returns the failure of an operation whose kernels have ended, or null. */
    CollectiveException failure(Operation operation) {
        List<Integer> missing = missing();
        if (!missing.isEmpty()) {
            return GroupErrors.timedOut(operation, rank, missing, "did not arrive");
        }
        String refusal = refusal();
        return refusal == null
                ? null
                : new CollectiveException(operation + " failed on rank " + rank + ": " + refusal);
    }

    @Override
    public synchronized void close() {
        failed = hasFailed();
        closed = true;
        memory.close();
    }
}
