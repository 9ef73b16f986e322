// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.Optional;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Symmetric memory: NCCL allocates it, and all ranks of a communicator register it together.
 * Collectives on this memory use NCCL's symmetric-memory kernels, the fastest for small messages,
 * if the send and receive buffers are both in windows, at the same offset on all ranks.
 *
 * <p>With NVLS, NCCL maps such memory for multicast. The environment variable {@code
 * NCCL_NVLS_ENABLE=0} prevents that.
 */
public final class NcclWindow implements AutoCloseable {

    private static final int RESULT_BYTES = Long.BYTES;

    private final NcclCommunicator communicator;
    private final NativeMemory memory;
    private final long handle;
    private boolean closed;

    private NcclWindow(NcclCommunicator communicator, NativeMemory memory, long handle) {
        this.communicator = communicator;
        this.memory = memory;
        this.handle = handle;
    }

    /**
     * {@return why windows are not available; empty if windows are available, which requires NCCL
     * 2.27}
     */
    public static Optional<String> unavailabilityCause() {
        Throwable cause = NativeLibrary.NCCL.unavailabilityCause();
        if (cause != null) {
            return Optional.of(cause.getMessage());
        }
        try {
            Class.forName(NcclWindowCalls.class.getName(), true, NcclWindow.class.getClassLoader());
            return Optional.empty();
        } catch (ClassNotFoundException | LinkageError e) {
            return Optional.of("windows require NCCL 2.27 or later: " + e.getMessage());
        }
    }

    /**
     * Allocates and registers memory. All ranks of the communicator call this with the same size
     * and in the same order. Blocks until all ranks call it.
     *
     * @param communicator the communicator, which must outlive the window
     * @param byteSize the size in bytes, at least 1
     * @return the window; the caller closes it
     * @throws IllegalArgumentException if the size is not positive
     * @throws IllegalStateException if windows are {@linkplain #unavailabilityCause not available}
     * @throws NcclException if NCCL fails
     */
    public static NcclWindow create(NcclCommunicator communicator, long byteSize) {
        CudaMemory.requirePositive(byteSize);
        unavailabilityCause()
                .ifPresent(
                        cause -> {
                            throw new IllegalStateException(cause);
                        });
        NativeMemory memory = allocate(communicator, byteSize);
        boolean done = false;
        try {
            Memory result = new Memory(RESULT_BYTES);
            result.setLong(0, 0);
            communicator.call(
                    "ncclCommWindowRegister",
                    comm ->
                            NcclWindowCalls.ncclCommWindowRegister(
                                    comm,
                                    memory.address(),
                                    byteSize,
                                    Pointer.nativeValue(result),
                                    NcclWindowCalls.COLLECTIVE_SYMMETRIC));
            done = true;
            return new NcclWindow(communicator, memory, result.getLong(0));
        } finally {
            if (!done) {
                memory.close();
            }
        }
    }

    private static NativeMemory allocate(NcclCommunicator communicator, long byteSize) {
        CudaDevice device = communicator.device();
        Memory result = new Memory(RESULT_BYTES);
        communicator.call(
                "ncclMemAlloc",
                comm -> NcclWindowCalls.ncclMemAlloc(Pointer.nativeValue(result), byteSize));
        long address = result.getLong(0);
        device.retain();
        return new NativeMemory(
                address,
                byteSize,
                device.device(),
                () -> {
                    try {
                        int code = device.in(() -> NcclWindowCalls.ncclMemFree(address));
                        NcclCommunicator.check(code, "ncclMemFree", 0);
                    } finally {
                        device.release();
                    }
                });
    }

    /** {@return the memory; freed after the window and all views are closed} */
    public NativeMemory memory() {
        return memory;
    }

    /**
     * Deregisters the memory and releases it. All ranks call this after the last collective on it
     * and before they close the communicator. Idempotent.
     */
    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        try {
            communicator.call(
                    "ncclCommWindowDeregister",
                    comm -> NcclWindowCalls.ncclCommWindowDeregister(comm, handle));
        } finally {
            memory.close();
        }
    }
}
