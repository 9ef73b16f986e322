// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;

/**
 * A struct argument of a kernel, reused for many launches: constant members are written once.
 * Members are written at their byte offsets in the kernel's struct. Not thread-safe. The memory is
 * freed when the object is unreachable.
 */
public final class KernelStruct {

    private static final int ALIGNMENT =
            64; // of tensor maps, the members with the largest alignment

    private final Pointer memory;
    private final int byteSize;
    private final long address;

    /** Creates a struct of zeros, of its {@code sizeof} in bytes, at least 1. */
    public KernelStruct(int byteSize) {
        if (byteSize < 1) {
            throw new IllegalArgumentException(
                    "a struct of " + byteSize + " bytes is too small: the minimum is 1");
        }
        Memory whole = new Memory((long) byteSize + ALIGNMENT);
        whole.clear();
        long start = Pointer.nativeValue(whole);
        memory = whole.share(-start & ALIGNMENT - 1, byteSize);
        address = Pointer.nativeValue(memory);
        this.byteSize = byteSize;
    }

    /** {@return the size in bytes} */
    public int byteSize() {
        return byteSize;
    }

    /** {@return its bytes: a direct view, to copy many structs into the memory of a GPU} */
    public ByteBuffer bytes() {
        return memory.getByteBuffer(0, byteSize);
    }

    /** Puts a 64-bit integer or a pointer. */
    public KernelStruct put(int offset, long value) {
        memory.setLong(checked(offset, Long.BYTES), value);
        return this;
    }

    public KernelStruct put(int offset, float value) {
        memory.setFloat(checked(offset, Float.BYTES), value);
        return this;
    }

    long address(int offset, int size) {
        return address + checked(offset, size);
    }

    private int checked(int offset, int size) {
        if (offset < 0 || offset > byteSize - size) {
            throw new IndexOutOfBoundsException(
                    String.format(
                            "%d bytes at %d lie outside a struct of %d bytes",
                            size, offset, byteSize));
        }
        return offset;
    }
}
