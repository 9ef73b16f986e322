// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.nativeops.host.NativeMemory;

/** Memory on the heap of C, at a multiple of 64 bytes, that counts how often it was freed. */
final class TestMemory {

    private static final int ALIGNMENT = 64;

    final AtomicInteger freed = new AtomicInteger();
    final NativeMemory memory;
    final ByteBuffer bytes;

    TestMemory(int byteSize) {
        long allocated = Native.malloc((long) byteSize + ALIGNMENT);
        long address = (allocated + ALIGNMENT - 1) & -ALIGNMENT;
        bytes = buffer(address, byteSize);
        memory =
                new NativeMemory(
                        address,
                        byteSize,
                        Device.cpu(),
                        () -> {
                            freed.incrementAndGet();
                            Native.free(allocated);
                        });
    }

    /** Returns the elements of a contiguous array, as they are in memory. */
    static ByteBuffer bytes(NDArray array) {
        long size = Torch.scalarType(array).itemSize();
        for (long dimension : Torch.sizes(array)) {
            size *= dimension;
        }
        return buffer(Torch.dataPointer(array), size);
    }

    private static ByteBuffer buffer(long address, long byteSize) {
        return new Pointer(address).getByteBuffer(0, byteSize).order(ByteOrder.nativeOrder());
    }
}
