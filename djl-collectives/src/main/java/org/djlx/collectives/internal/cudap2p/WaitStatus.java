// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Two words of pinned memory that the host shares with the kernels of one rank: {@code struct
 * Status} of {@code signal.cuh}. With one, the host ends all waits; with the other, kernels report
 * a missing rank. Thread-safe.
 */
final class WaitStatus implements AutoCloseable {

    private static final KernelConstants.Layout STATUS =
            new KernelConstants(KernelSource.ofResource(NativeLibrary.class, "signals/signals.cu"))
                    .struct("Status");
    private static final int STOP = STATUS.offset("stop");
    private static final int MISSING = STATUS.offset("missing");
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

    /** Returns whether a wait of a kernel has failed; also after {@link #close}. */
    synchronized boolean hasFailed() {
        return closed ? failed : !missing().isEmpty();
    }

    /** Returns the failure of an operation whose kernels have ended, or null. */
    CollectiveException failure(Operation operation) {
        List<Integer> missing = missing();
        return missing.isEmpty()
                ? null
                : GroupErrors.timedOut(operation, rank, missing, "did not arrive");
    }

    @Override
    public synchronized void close() {
        failed = hasFailed();
        closed = true;
        memory.close();
    }
}
