// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A struct argument of a kernel, reused for many launches: constant members are written once.
 * Members are written at their byte offsets in the kernel's struct. Not thread-safe. The memory is
 * freed when the object is unreachable.
 */
public final class KernelStruct {

    private static final int ALIGNMENT =
            64; // of tensor maps, the members with the largest alignment

    private final ByteBuffer buffer;
    private final long address;

    /**
     * Creates a struct of zeros.
     *
     * @param byteSize the struct's {@code sizeof} in bytes, at least 1
     */
    public KernelStruct(int byteSize) {
        if (byteSize < 1) {
            throw new IllegalArgumentException(
                    "a struct of " + byteSize + " bytes is too small: the minimum is 1");
        }
        ByteBuffer memory = ByteBuffer.allocateDirect(byteSize + ALIGNMENT);
        int offset = -memory.alignmentOffset(0, ALIGNMENT) & (ALIGNMENT - 1);
        buffer = memory.slice(offset, byteSize).order(ByteOrder.nativeOrder());
        address = Pointer.nativeValue(Native.getDirectBufferPointer(buffer));
    }

    /** {@return the size in bytes} */
    public int byteSize() {
        return buffer.capacity();
    }

    /**
     * Puts a 64-bit integer or a pointer.
     *
     * @param offset the member's offset
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
     * @return this
     * @throws IndexOutOfBoundsException if the member lies outside the struct
     */
    public KernelStruct put(int offset, float value) {
        buffer.putFloat(offset, value);
        return this;
    }

    /** Returns the address of a member of the given size. */
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
