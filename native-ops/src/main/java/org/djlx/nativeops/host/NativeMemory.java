// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.pytorch.engine.PtDeviceType;
import com.sun.jna.LastErrorException;

/**
 * Reference-counted off-heap memory that arrays can be views of; see {@code Torch.view}.
 *
 * <p>The creator holds one reference, which {@link #close()} releases. Every view holds a reference
 * until the view is closed. The thread that releases the last reference frees the memory.
 * Thread-safe.
 */
public final class NativeMemory implements AutoCloseable {

    private final long address;
    private final long byteSize;
    private final Device device;
    private final Runnable free;

    private int references = 1;
    private boolean closed;

    /**
     * Wraps allocated memory.
     *
     * @param address the address of the first byte, as the device sees it; may be 0 if {@code
     *     byteSize} is 0
     * @param device where the memory is: {@link Device#cpu()} or a single GPU
     * @param free frees the memory; runs once, after this object and all its views are closed. The
     *     last {@code close} throws its exceptions
     * @throws IllegalArgumentException if an argument is null, the size is negative, the range is
     *     outside the address space, or the device is neither the CPU nor a single GPU
     */
    public NativeMemory(long address, long byteSize, Device device, Runnable free) {
        if (byteSize < 0) {
            throw new IllegalArgumentException("the size is negative: " + byteSize + " bytes");
        }
        if (address == 0 && byteSize > 0) {
            throw new IllegalArgumentException("the address of " + byteSize + " bytes is 0");
        }
        if (Long.compareUnsigned(address + byteSize, address) < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "%d bytes at 0x%x are outside the address space", byteSize, address));
        }
        deviceType(device);
        Required.argument("free", free);
        this.address = address;
        this.byteSize = byteSize;
        this.device = device;
        this.free = free;
    }

    /**
     * Allocates host memory of zeros. The system provides a page when it is first written.
     *
     * @param byteSize the size in bytes, at least 1
     * @param hugePages whether to ask for pages of 2 MiB, which are read up to 1.5 times as fast;
     *     for memory that is written as a whole
     * @return the memory, aligned to a page
     * @throws EngineException if the system refuses the memory
     */
    public static NativeMemory allocateZeros(long byteSize, boolean hugePages) {
        long address;
        try {
            int flags = LibC.MAP_PRIVATE | LibC.MAP_ANONYMOUS;
            address = LibC.mmap(0, byteSize, LibC.PROT_READ_WRITE, flags, -1, 0);
        } catch (LastErrorException e) {
            throw new EngineException(
                    "cannot allocate " + byteSize + " bytes of host memory: " + e.getMessage(), e);
        }
        if (hugePages) {
            LibC.madvise(address, byteSize, LibC.MADV_HUGEPAGE); // Fails where there are none.
        }
        return new NativeMemory(
                address, byteSize, Device.cpu(), () -> LibC.munmap(address, byteSize));
    }

    /**
     * {@return the address of the first byte, as the device sees it} It is valid until the memory
     * is freed.
     */
    public long address() {
        return address;
    }

    /** {@return the size in bytes} */
    public long byteSize() {
        return byteSize;
    }

    public Device device() {
        return device;
    }

    /**
     * {@return whether {@link #close()} was called} Existing views still hold the memory, but new
     * views cannot be created.
     */
    public synchronized boolean isClosed() {
        return closed;
    }

    /** Releases the creator's reference. Idempotent. */
    @Override
    public void close() {
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        release();
    }

    /**
     * Adds a reference.
     *
     * @throws IllegalStateException if {@link #close()} was called
     */
    public synchronized void retain() {
        if (closed) {
            throw new IllegalStateException("the memory is closed");
        }
        references++;
    }

    /**
     * Adds a reference for the holder of a view. Unlike {@link #retain}, works after {@link
     * #close()}.
     *
     * @throws IllegalStateException if the memory is freed
     */
    public synchronized void share() {
        if (references == 0) {
            throw new IllegalStateException("the memory is freed");
        }
        references++;
    }

    /** Releases a reference. Frees the memory if it was the last reference. */
    public void release() {
        synchronized (this) {
            if (references == 0) {
                throw new IllegalStateException("the memory was released more often than retained");
            }
            references--;
            if (references > 0) {
                return;
            }
        }
        // Outside the lock, because freeing may be slow or take other locks.
        free.run();
    }

    @Override
    public String toString() {
        return String.format("%d bytes at 0x%x on %s", byteSize, address, device);
    }

    /** {@return libtorch's code of the type of a device: the CPU or a single GPU} */
    public static int deviceType(Device device) {
        Required.argument("the device", device);
        boolean cpu = Device.Type.CPU.equals(device.getDeviceType());
        boolean gpu = device.isGpu() && device.getDeviceId() >= 0;
        if (device instanceof Device.MultiDevice || !cpu && !gpu) {
            throw new IllegalArgumentException(
                    "the device is neither the CPU nor a single GPU: " + device);
        }
        return PtDeviceType.toDeviceType(device);
    }
}
