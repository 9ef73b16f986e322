// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
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
 * of {@code signal.cuh}. With one, the host ends all waits; with the others, kernels report a rank
 * that did not arrive or named other ranks for a barrier, or refused splits. Thread-safe.
 */
final class WaitStatus implements AutoCloseable {

    private static final KernelConstants CONSTANTS =
            new KernelConstants(KernelSource.ofResource(NativeLibrary.class, "signals/signals.cu"));
    private static final int MISMATCH_SHIFT = CONSTANTS.value("MISMATCH_SHIFT");
    private static final KernelConstants.Layout STATUS = CONSTANTS.struct("Status");
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

    long address() {
        return memory.address();
    }

    /** Ends all waits of kernels for other ranks, now and later. */
    synchronized void stop() {
        if (!closed) {
            words.putIntVolatile(STOP, 1);
        }
    }

    /** Returns why a kernel has failed; empty if none has. */
    Optional<String> error() {
        Optional<String> wait = error(words.getIntVolatile(MISSING));
        return wait.isPresent()
                ? wait
                : Optional.ofNullable(refusal()).map(text -> "rank " + rank + ": " + text);
    }

    static Optional<String> error(int word) {
        if (word == 0) {
            return Optional.empty();
        }
        String peer = "rank " + peer(word);
        int named = word >>> MISMATCH_SHIFT;
        return Optional.of(
                named == 0
                        ? peer + " did not arrive"
                        : GroupErrors.otherRanks(
                                peer,
                                IntStream.range(0, RegionLayout.MAX_RANKS)
                                        .filter(rank -> (named >>> rank & 1) != 0)
                                        .boxed()
                                        .toList(),
                                "this rank"));
    }

    private static int peer(int word) {
        return (word & (1 << MISMATCH_SHIFT) - 1) - 1;
    }

    /** Returns why a kernel of this rank refused splits, or null. */
    private String refusal() {
        int reason = words.getIntVolatile(REFUSED);
        return reason == 0
                ? null
                : SplitError.values()[reason - 1].message(
                        words.getIntVolatile(INDEX), words.getLong(VALUE), words.getLong(LIMIT));
    }

    /** Returns whether a wait of a kernel has failed; also after {@link #close}. */
    synchronized boolean hasFailed() {
        return closed ? failed : words.getIntVolatile(MISSING) != 0;
    }

    /** Returns the failure of an operation whose kernels have ended, or null. */
    CollectiveException failure(Operation operation) {
        int word = words.getIntVolatile(MISSING);
        if (word == 0) {
            String refusal = refusal();
            return refusal == null
                    ? null
                    : new CollectiveException(
                            operation + " failed on rank " + rank + ": " + refusal);
        }
        return word >>> MISMATCH_SHIFT == 0
                ? GroupErrors.timedOut(operation, rank, List.of(peer(word)), "did not arrive")
                : new CollectiveMismatchException(
                        operation + " failed on rank " + rank + ": " + error(word).get(), true);
    }

    @Override
    public synchronized void close() {
        failed = hasFailed();
        closed = true;
        memory.close();
    }
}
