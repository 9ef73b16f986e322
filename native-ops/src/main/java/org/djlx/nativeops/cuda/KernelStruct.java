/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A struct that a kernel takes by value, kept from launch to launch: what stays the same is put
 * once. Members are put at their offsets in bytes, as the kernel's source lays them out. For one
 * thread at a time; its memory is freed when nothing refers to it any more.
 */
public final class KernelStruct {

    private static final int ALIGNMENT = 64; // that of tensor maps, the largest that members have

    private final ByteBuffer buffer;
    private final long address;

    /**
     * Creates a struct of zeros.
     *
     * @param byteSize the size in bytes, at least 1, as {@code sizeof} has it
     */
    public KernelStruct(int byteSize) {
        if (byteSize < 1) {
            throw new IllegalArgumentException("a struct of " + byteSize + " bytes");
        }
        ByteBuffer memory = ByteBuffer.allocateDirect(byteSize + ALIGNMENT);
        int offset = -memory.alignmentOffset(0, ALIGNMENT) & (ALIGNMENT - 1);
        buffer = memory.slice(offset, byteSize).order(ByteOrder.nativeOrder());
        address = Pointer.nativeValue(Native.getDirectBufferPointer(buffer));
    }

    /**
     * Returns the size.
     *
     * @return the size in bytes
     */
    public int byteSize() {
        return buffer.capacity();
    }

    /**
     * Puts a 64-bit integer or a pointer.
     *
     * @param offset the member's offset
     * @param value the value
     * @return this
     * @throws IndexOutOfBoundsException if the member lies outside the struct
     */
    public KernelStruct put(int offset, long value) {
        buffer.putLong(offset, value);
        return this;
    }

    /**
     * Puts a float.
     *
     * @param offset the member's offset
     * @param value the value
     * @return this
     * @throws IndexOutOfBoundsException if the member lies outside the struct
     */
    public KernelStruct put(int offset, float value) {
        buffer.putFloat(offset, value);
        return this;
    }

    /** Returns where a member is that takes some bytes. */
    long address(int offset, int byteSize) {
        if (offset < 0 || offset > buffer.capacity() - byteSize) {
            throw new IndexOutOfBoundsException(
                    String.format(
                            "%d bytes at %d lie outside a struct of %d bytes",
                            byteSize, offset, buffer.capacity()));
        }
        return address + offset;
    }
}
