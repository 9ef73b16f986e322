/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.host;

import ai.djl.Device;
import ai.djl.pytorch.engine.PtDeviceType;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Off-heap memory that arrays can be views of; see {@link Torch#view(ai.djl.ndarray.NDManager,
 * NativeMemory, long, ai.djl.ndarray.types.Shape, ScalarType)}.
 *
 * <p>The memory is reference-counted. Whoever creates it holds one reference, which {@link
 * #close()} gives up, and every view holds one until the view is closed. The memory is freed when
 * the last reference is gone, by the thread that gave it up. Safe for use by several threads.
 */
public final class NativeMemory implements AutoCloseable {

    private final long address;
    private final long byteSize;
    private final Device device;
    private final Runnable free;

    private int references = 1;
    private boolean closed;

    /**
     * Wraps memory that the caller has allocated.
     *
     * @param address the address of the first byte, as the device sees it; may be 0 if {@code
     *     byteSize} is 0
     * @param byteSize the size in bytes
     * @param device where the memory is: {@link Device#cpu()} or a single GPU
     * @param free frees the memory; runs once, when this object and all its views are closed. What
     *     it throws reaches the caller of the last {@code close}
     * @throws IllegalArgumentException if an argument is null, the size negative, the range not
     *     within the address space, or the device neither the CPU nor a single GPU
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
                            "%d bytes at 0x%x do not fit the address space", byteSize, address));
        }
        deviceType(device);
        if (free == null) {
            throw new IllegalArgumentException("what frees the memory is null");
        }
        this.address = address;
        this.byteSize = byteSize;
        this.device = device;
        this.free = free;
    }

    /**
     * Returns the address of the first byte, as the device sees it. It is valid until the memory is
     * freed.
     *
     * @return the address
     */
    public long address() {
        return address;
    }

    /**
     * Returns the size.
     *
     * @return the size in bytes
     */
    public long byteSize() {
        return byteSize;
    }

    /**
     * Returns where the memory is.
     *
     * @return the device
     */
    public Device device() {
        return device;
    }

    /**
     * Tells whether {@link #close()} was called. Views may still hold the memory then, but there
     * can be no new ones.
     *
     * @return whether this object is closed
     */
    public synchronized boolean isClosed() {
        return closed;
    }

    /** Gives up the creator's reference; does nothing when called again. */
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

    public synchronized void retain() {
        if (closed) {
            throw new IllegalStateException("the memory is closed");
        }
        references++;
    }

    /** As {@link #retain}, for who holds a view: also when the memory is closed for new ones. */
    public synchronized void share() {
        if (references == 0) {
            throw new IllegalStateException("the memory is freed");
        }
        references++;
    }

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
        // Outside the lock: freeing may be slow, or take locks of its own.
        free.run();
    }

    @Override
    public String toString() {
        return String.format("%d bytes at 0x%x on %s", byteSize, address, device);
    }

    /** Returns libtorch's number for the kind of a device. */
    public static int deviceType(Device device) {
        if (device == null) {
            throw new IllegalArgumentException("the device is null");
        }
        boolean cpu = Device.Type.CPU.equals(device.getDeviceType());
        boolean gpu = device.isGpu() && device.getDeviceId() >= 0;
        if (device instanceof Device.MultiDevice || !cpu && !gpu) {
            throw new IllegalArgumentException(
                    "the device is neither the CPU nor a single GPU: " + device);
        }
        return PtDeviceType.toDeviceType(device);
    }
}
