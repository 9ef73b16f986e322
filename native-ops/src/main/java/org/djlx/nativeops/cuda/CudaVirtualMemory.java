// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import java.util.Arrays;
import java.util.List;
import java.util.function.LongSupplier;
import java.util.stream.Stream;
import org.bytedeco.cuda.cudart.CUmemAccessDesc_v1;
import org.bytedeco.cuda.cudart.CUmemAllocationProp_v1;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.IntPointer;
import org.bytedeco.javacpp.SizeTPointer;
import org.djlx.nativeops.host.Descriptor;
import org.djlx.nativeops.host.DescriptorChannel;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Required;

/**
 * GPU memory that is mapped for chosen GPUs only (CUDA's virtual memory management). Contents are
 * not initialised.
 *
 * <p>Differences from {@link CudaMemory} that matter between peers:
 *
 * <ul>
 *   <li>All chosen GPUs use one mapping; {@link CudaDevice#enablePeerAccess} is not needed.
 *   <li>A copy into it does not wait for another thread's {@code cuMemFree} on its GPU, as a copy
 *       into memory of {@code cuMemAlloc} does. So streams can wait for each other's copies without
 *       deadlock.
 * </ul>
 *
 * <p>Other processes of the host map it by a file descriptor, which a {@link DescriptorChannel}
 * passes. The physical memory exists until all processes have unmapped it and closed their
 * descriptors.
 *
 * <p>{@link #close} releases the mapping; the memory is unmapped when the last array that views it
 * is closed. Close only after all streams have finished using the memory, because the driver may
 * not wait for running work. The mapping retains its GPU's context. Thread-safe. Failures of the
 * driver are {@link CudaException}s.
 */
public final class CudaVirtualMemory implements AutoCloseable {

    private final Mapping mapping;
    private final NativeMemory memory;

    private CudaVirtualMemory(Mapping mapping, long byteSize) {
        this.mapping = mapping;
        this.memory =
                new NativeMemory(
                        mapping.address, byteSize, Device.gpu(mapping.owner), mapping::free);
    }

    /**
     * {@return whether a GPU and its driver support virtual memory and can share it by file
     * descriptors}
     */
    public static boolean isSupported(CudaDevice device) {
        return device.attribute(CudaAttribute.VIRTUAL_MEMORY_MANAGEMENT) != 0
                && device.attribute(CudaAttribute.FILE_DESCRIPTOR_HANDLES) != 0;
    }

    /**
     * Allocates GPU memory. The size is rounded up to the driver's granularity, 2 MiB on many GPUs.
     *
     * @param peers further GPUs that read and write it, each with {@linkplain
     *     CudaDevice#canAccessPeer access} to {@code device}; may contain {@code device} and
     *     duplicates
     * @param byteSize the size in bytes, at least 1
     * @return the memory, aligned to the granularity; the caller closes it
     * @throws EngineException if the GPU does not {@linkplain #isSupported support} it, or a peer
     *     has no access
     * @throws CudaException with {@code CUDA_ERROR_OUT_OF_MEMORY} if memory runs out
     */
    public static CudaVirtualMemory allocate(
            CudaDevice device, List<CudaDevice> peers, long byteSize) {
        CudaMemory.requirePositive(byteSize);
        if (peers == null || peers.stream().anyMatch(peer -> peer == null)) {
            throw new IllegalArgumentException("the peers are null, or one of them: " + peers);
        }
        requireSupport(device);
        return map(device, peers, byteSize, () -> Mapping.create(device, byteSize));
    }

    /**
     * Maps memory that this or another process of the host has {@linkplain #export() exported}. Its
     * {@link NativeMemory#device()} is the owning GPU, as this process numbers GPUs; that GPU must
     * be visible to this process.
     *
     * @param device the GPU that reads and writes it: the owner, or a GPU with access to the owner
     * @param descriptor the descriptor; the caller keeps it and may close it after the call
     * @param byteSize the size with which it was allocated
     * @return the memory; the caller closes it
     * @throws EngineException if the GPU does not {@linkplain #isSupported support} it, or has no
     *     access to the owner
     * @throws CudaException if the descriptor is not of GPU memory, or the memory is smaller than
     *     {@code byteSize}
     */
    public static CudaVirtualMemory open(CudaDevice device, Descriptor descriptor, long byteSize) {
        CudaMemory.requirePositive(byteSize);
        Required.argument("the descriptor", descriptor);
        requireSupport(device);
        int number = descriptor.number();
        return map(device, List.of(), byteSize, () -> Mapping.open(device, number));
    }

    private static void requireSupport(CudaDevice device) {
        Required.argument("the device", device);
        if (!isSupported(device)) {
            throw new EngineException(
                    ("%s (%s) or its driver does not support sharing virtual memory by file"
                                    + " descriptors")
                            .formatted(device, device.name()));
        }
    }

    private static CudaVirtualMemory map(
            CudaDevice device, List<CudaDevice> peers, long byteSize, LongSupplier handle) {
        int[] users =
                Stream.concat(Stream.of(device), peers.stream())
                        .mapToInt(user -> user.device().getDeviceId())
                        .distinct()
                        .toArray();
        device.retain();
        Mapping mapping = new Mapping(device);
        try {
            mapping.hold(handle.getAsLong());
            mapping.map(byteSize);
            mapping.allow(users);
            return new CudaVirtualMemory(mapping, byteSize);
        } catch (RuntimeException | Error e) {
            try {
                mapping.free();
            } catch (RuntimeException f) {
                e.addSuppressed(f);
            }
            throw e;
        }
    }

    /**
     * {@return the mapped memory; unmapped after {@link #close()} and after its last view is
     * closed}
     */
    public NativeMemory memory() {
        return memory;
    }

    /**
     * {@return a descriptor with which other processes can map the memory; the caller closes it}
     * The descriptor keeps the physical memory, but not this mapping.
     */
    public Descriptor export() {
        memory.retain();
        try {
            return mapping.export();
        } finally {
            memory.release();
        }
    }

    /** Releases the mapping. Idempotent. */
    @Override
    public void close() {
        memory.close();
    }

    /**
     * The driver's objects, created step by step; {@link #free} can undo any number of steps. A
     * separate class, because the JVM loads the CUDA presets when it verifies a class that uses
     * them.
     */
    private static final class Mapping {

        private final CudaDevice device;
        private long handle;
        private boolean held;
        private int owner;
        private long byteSize; // a multiple of the granularity
        private long address;
        private boolean mapped;

        /** Takes ownership of one {@link CudaDevice#retain}. */
        Mapping(CudaDevice device) {
            this.device = device;
        }

        static long create(CudaDevice device, long byteSize) {
            long[] handle = new long[1];
            try (CUmemAllocationProp_v1 properties = new CUmemAllocationProp_v1()) {
                properties.zero();
                properties.type(cudart.CU_MEM_ALLOCATION_TYPE_PINNED);
                properties.requestedHandleTypes(cudart.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
                properties.location().type(cudart.CU_MEM_LOCATION_TYPE_DEVICE);
                properties.location().id(device.device().getDeviceId());
                long rounded = roundUp(device, properties, byteSize);
                device.call(
                        "cuMemCreate", () -> cudart.cuMemCreate(handle, rounded, properties, 0));
            }
            return handle[0];
        }

        static long open(CudaDevice device, int descriptor) {
            long[] handle = new long[1];
            device.call(
                    "cuMemImportFromShareableHandle",
                    () ->
                            cudart.cuMemImportFromShareableHandle(
                                    handle,
                                    CudaDriver.pointer(descriptor),
                                    cudart.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
            return handle[0];
        }

        private static long roundUp(
                CudaDevice device, CUmemAllocationProp_v1 properties, long byteSize) {
            try (SizeTPointer granularity = new SizeTPointer(1)) {
                device.call(
                        "cuMemGetAllocationGranularity",
                        () ->
                                cudart.cuMemGetAllocationGranularity(
                                        granularity,
                                        properties,
                                        cudart.CU_MEM_ALLOC_GRANULARITY_MINIMUM));
                long step = granularity.get();
                return (byteSize - 1) / step * step + step;
            }
        }

        void hold(long handle) {
            this.handle = handle;
            held = true;
        }

        void map(long size) {
            try (CUmemAllocationProp_v1 properties = new CUmemAllocationProp_v1()) {
                device.call(
                        "cuMemGetAllocationPropertiesFromHandle",
                        () -> cudart.cuMemGetAllocationPropertiesFromHandle(properties, handle));
                owner = properties.location().id();
                byteSize = roundUp(device, properties, size);
            }
            long[] reserved = new long[1];
            device.call(
                    "cuMemAddressReserve",
                    () -> cudart.cuMemAddressReserve(reserved, byteSize, 0, 0, 0));
            address = reserved[0];
            device.call("cuMemMap", () -> cudart.cuMemMap(address, byteSize, 0, handle, 0));
            mapped = true;
        }

        void allow(int[] users) {
            try (CUmemAccessDesc_v1 access = new CUmemAccessDesc_v1(users.length)) {
                for (int i = 0; i < users.length; i++) {
                    access.position(i);
                    access.location().type(cudart.CU_MEM_LOCATION_TYPE_DEVICE);
                    access.location().id(users[i]);
                    access.flags(cudart.CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
                }
                access.position(0);
                device.call(
                        "cuMemSetAccess",
                        () -> cudart.cuMemSetAccess(address, byteSize, access, users.length));
            } catch (CudaException e) {
                throw new EngineException(
                        String.format(
                                "cannot give GPUs %s access to memory of GPU %d: %s",
                                Arrays.toString(users), owner, e.getMessage()),
                        e);
            }
        }

        Descriptor export() {
            try (IntPointer descriptor = new IntPointer(1)) {
                device.call(
                        "cuMemExportToShareableHandle",
                        () ->
                                cudart.cuMemExportToShareableHandle(
                                        descriptor,
                                        handle,
                                        cudart.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                        0));
                return new Descriptor(descriptor.get());
            }
        }

        /** Undoes the completed steps in reverse order. Runs once. */
        void free() {
            try {
                if (mapped) {
                    device.call("cuMemUnmap", () -> cudart.cuMemUnmap(address, byteSize));
                }
            } finally {
                try {
                    if (address != 0) {
                        device.call(
                                "cuMemAddressFree",
                                () -> cudart.cuMemAddressFree(address, byteSize));
                    }
                } finally {
                    release();
                }
            }
        }

        private void release() {
            try {
                if (held) {
                    device.call("cuMemRelease", () -> cudart.cuMemRelease(handle));
                }
            } finally {
                device.release();
            }
        }
    }
}
