// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import java.util.function.IntSupplier;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.IntPointer;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.PointerPointer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Allocates GPU memory and pinned host memory. Contents are not initialised.
 *
 * <p>Allocating and freeing may wait for all work of the GPU, so do neither between enqueuing a
 * wait for a signal and sending the signal. Memory retains its GPU's context until it is freed.
 * Close it only after all streams have finished using it. Failures are {@link CudaException}s, for
 * example {@code CUDA_ERROR_OUT_OF_MEMORY}.
 */
public final class CudaMemory {

    private CudaMemory() {}

    /** Allocates 1 or more bytes of GPU memory, aligned to 256 bytes. */
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
     * Allocates 1 or more bytes of pinned host memory, on {@link Device#cpu()}, which the GPU's
     * context owns. Copies from and to GPUs are asynchronous, and all GPUs access it at the same
     * address.
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
     * {@return whether enabled peer access ({@link CudaDevice#enablePeerAccess}) is enough for a
     * peer to access memory of a GPU} True for memory of {@code cudaMalloc}; false for virtual
     * memory, which is mapped for named GPUs only.
     */
    public static boolean isPeerAccessible(CudaDevice device, long address) {
        return Legacy.is(device, address);
    }

    /**
     * A separate class: when the JVM verifies a class, it loads the presets that the class uses.
     */
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

    /** Allocates memory, wraps it, and retains the context until it is freed. */
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
            return memory;
        } catch (Throwable e) {
            device.release();
            throw e;
        }
    }
}
