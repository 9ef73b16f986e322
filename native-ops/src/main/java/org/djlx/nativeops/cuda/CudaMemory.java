/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import java.util.function.IntSupplier;
import org.bytedeco.cuda.cudart.CUipcMemHandle_v1;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.IntPointer;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.PointerPointer;
import org.bytedeco.javacpp.SizeTPointer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Memory of GPUs, and memory of the host that GPUs reach. The contents are not initialised.
 *
 * <p>Allocating and freeing may wait until the GPU has done all its work, so neither belongs
 * between a stream's wait for a flag and the raising of it. Memory keeps its GPU's context until it
 * is freed. Close it only when no stream uses it any more. Failures are {@link CudaException}s:
 * {@code CUDA_ERROR_OUT_OF_MEMORY} if there is not enough.
 */
public final class CudaMemory {

    /** The size of what {@link #exportHandle} returns, in bytes. */
    public static final int HANDLE_BYTES = 64;

    private CudaMemory() {}

    /**
     * Allocates memory of a GPU. Unlike memory of libtorch's arrays it can always be {@linkplain
     * #exportHandle exported} to other processes.
     *
     * @param device the GPU
     * @param byteSize how many bytes, at least 1
     * @return the memory, at a multiple of 256 bytes
     */
    public static NativeMemory allocate(CudaDevice device, long byteSize) {
        requirePositive(byteSize);
        long[] address = new long[1];
        return create(
                device,
                device.device(),
                byteSize,
                address,
                "cuMemAlloc",
                () -> cudart.cuMemAlloc(address, byteSize),
                "cuMemFree",
                () -> cudart.cuMemFree(address[0]));
    }

    /**
     * Allocates memory of the host that is never paged out: copies to and from GPUs need not wait
     * for the host, and GPUs reach it at the same address.
     *
     * @param device the GPU whose context owns the memory; all GPUs can use it
     * @param byteSize how many bytes, at least 1
     * @return the memory, on {@link Device#cpu()}
     */
    public static NativeMemory allocatePinned(CudaDevice device, long byteSize) {
        requirePositive(byteSize);
        long[] address = new long[1];
        int flags = cudart.CU_MEMHOSTALLOC_PORTABLE | cudart.CU_MEMHOSTALLOC_DEVICEMAP;
        return create(
                device,
                Device.cpu(),
                byteSize,
                address,
                "cuMemHostAlloc",
                () -> {
                    try (PointerPointer<Pointer> result = new PointerPointer<>(1)) {
                        int status = cudart.cuMemHostAlloc(result, byteSize, flags);
                        address[0] = status == cudart.CUDA_SUCCESS ? result.get().address() : 0;
                        return status;
                    }
                },
                "cuMemFreeHost",
                () -> cudart.cuMemFreeHost(CudaDriver.pointer(address[0])));
    }

    /**
     * Returns what another process of this host needs to open memory that was {@linkplain #allocate
     * allocated} here.
     *
     * @param device the GPU of the memory
     * @param memory the memory; must stay allocated until all others have closed it
     * @return {@value #HANDLE_BYTES} bytes
     * @throws IllegalArgumentException if the memory is closed, or a part of a larger allocation:
     *     others would open that
     */
    public static byte[] exportHandle(CudaDevice device, NativeMemory memory) {
        if (memory.isClosed()) {
            throw new IllegalArgumentException("the memory is closed: " + memory);
        }
        if (!memory.device().equals(device.device())) {
            throw new IllegalArgumentException(memory + " is not memory of " + device);
        }
        requireWholeAllocation(device, memory);
        byte[] bytes = new byte[HANDLE_BYTES];
        try (CUipcMemHandle_v1 handle = new CUipcMemHandle_v1()) {
            device.call(
                    "cuIpcGetMemHandle", () -> cudart.cuIpcGetMemHandle(handle, memory.address()));
            for (int i = 0; i < HANDLE_BYTES; i++) {
                bytes[i] = handle.reserved(i);
            }
        }
        return bytes;
    }

    private static void requireWholeAllocation(CudaDevice device, NativeMemory memory) {
        long[] base = new long[1];
        try (SizeTPointer size = new SizeTPointer(1)) {
            device.call(
                    "cuMemGetAddressRange",
                    () -> cudart.cuMemGetAddressRange(base, size, memory.address()));
            if (base[0] != memory.address()) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s is a part of an allocation of %d bytes at 0x%x",
                                memory, size.get(), base[0]));
            }
        }
    }

    /**
     * Opens memory that another process of this host exported. A process cannot open its own.
     *
     * @param device the GPU that is to use it: the one it was allocated on, or one with access to
     *     that, which is enabled
     * @param handle what {@link #exportHandle} returned there
     * @param byteSize the size that it was allocated with
     * @return the memory; closing it ends this process's access. Its {@link NativeMemory#device()}
     *     is {@code device}, as that is how it is used
     * @throws CudaException with {@code CUDA_ERROR_INVALID_CONTEXT} if this process exported it,
     *     {@code CUDA_ERROR_PEER_ACCESS_UNSUPPORTED} if the GPU cannot reach it
     */
    public static NativeMemory openHandle(CudaDevice device, byte[] handle, long byteSize) {
        if (handle.length != HANDLE_BYTES) {
            throw new IllegalArgumentException(
                    "a handle has " + HANDLE_BYTES + " bytes, not " + handle.length);
        }
        requirePositive(byteSize);
        long[] address = new long[1];
        try (CUipcMemHandle_v1 copy = new CUipcMemHandle_v1()) {
            for (int i = 0; i < HANDLE_BYTES; i++) {
                copy.reserved(i, handle[i]);
            }
            return create(
                    device,
                    device.device(),
                    byteSize,
                    address,
                    "cuIpcOpenMemHandle",
                    () ->
                            cudart.cuIpcOpenMemHandle(
                                    address, copy, cudart.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                    "cuIpcCloseMemHandle",
                    () -> cudart.cuIpcCloseMemHandle(address[0]));
        }
    }

    /**
     * Returns the GPU on which memory lies, as this process counts GPUs; for memory of another
     * process, which {@link #openHandle} says is its user's.
     *
     * @param device a GPU that can use the memory
     * @param memory the memory
     * @return the GPU
     */
    public static Device owner(CudaDevice device, NativeMemory memory) {
        return Owner.of(device, memory);
    }

    /** A class of its own: the JVM loads what it needs of the presets to verify it. */
    private static final class Owner {

        static Device of(CudaDevice device, NativeMemory memory) {
            try (IntPointer ordinal = new IntPointer(1)) {
                device.call(
                        "cuPointerGetAttribute",
                        () ->
                                cudart.cuPointerGetAttribute(
                                        ordinal,
                                        cudart.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        memory.address()));
                return Device.gpu(ordinal.get());
            }
        }
    }

    /**
     * Tells whether GPUs that have access to a peer address memory of it: what {@code cudaMalloc}
     * made, but not what is mapped for those GPUs alone that it names.
     *
     * @param device the GPU that has the memory
     * @param address an address in it
     * @return whether they do
     * @see CudaDevice#enablePeerAccess
     */
    public static boolean isPeerAccessible(CudaDevice device, long address) {
        return Legacy.is(device, address);
    }

    /** As {@link Owner}. */
    private static final class Legacy {

        static boolean is(CudaDevice device, long address) {
            try (IntPointer value = new IntPointer(1)) {
                value.put(0);
                int result =
                        device.in(
                                () ->
                                        cudart.cuPointerGetAttribute(
                                                value,
                                                cudart.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                                address));
                return result == cudart.CUDA_SUCCESS && value.get() != 0;
            }
        }
    }

    public static void requirePositive(long byteSize) {
        if (byteSize <= 0) {
            throw new IllegalArgumentException("the size must be positive: " + byteSize + " bytes");
        }
    }

    /** Makes memory of what a call wrote to an address, and keeps the context for as long. */
    private static NativeMemory create(
            CudaDevice device,
            Device where,
            long byteSize,
            long[] address,
            String creator,
            IntSupplier create,
            String destroyer,
            IntSupplier destroy) {
        device.retain();
        boolean created = false;
        try {
            device.call(creator, create);
            NativeMemory memory =
                    new NativeMemory(
                            address[0],
                            byteSize,
                            where,
                            () -> {
                                try {
                                    device.call(destroyer, destroy);
                                } finally {
                                    device.release();
                                }
                            });
            created = true;
            return memory;
        } finally {
            if (!created) {
                device.release();
            }
        }
    }
}
