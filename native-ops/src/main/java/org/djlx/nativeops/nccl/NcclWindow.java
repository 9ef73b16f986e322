/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.nccl;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.Optional;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Memory that NCCL allocates and all ranks of a communicator register together, at the same offset
 * for all: collectives on it use NCCL's kernels for symmetric memory, the fastest that NCCL has for
 * small messages. Send and receive buffers of a collective both lie in windows, at the same offset
 * on all ranks.
 *
 * <p>With NVLS, NCCL maps such memory for multicast; {@code NCCL_NVLS_ENABLE=0} in the environment
 * keeps it from that.
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
     * Tells why there are no windows.
     *
     * @return the cause; empty if NCCL is there and has them, which it does since 2.27
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
            return Optional.of("this NCCL has no windows, which came with 2.27: " + e.getMessage());
        }
    }

    /**
     * Allocates memory and registers it. All ranks of the communicator call this with the same
     * size, in the same order among their calls, and wait for each other.
     *
     * @param communicator the communicator, which must outlive the window
     * @param byteSize how many bytes, at least 1
     * @return the window, to be closed by the caller
     * @throws IllegalArgumentException if the size is not positive
     * @throws IllegalStateException if there are no windows, see {@link #unavailabilityCause}
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

    /**
     * Returns the memory.
     *
     * @return the memory, freed when this and all its views are closed
     */
    public NativeMemory memory() {
        return memory;
    }

    /**
     * Ends the registration and gives the memory up; does nothing when called again. All ranks do
     * so, when no collective uses it any more, before they close the communicator.
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
