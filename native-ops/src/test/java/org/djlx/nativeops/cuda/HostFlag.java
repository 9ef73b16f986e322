// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/** A word in pinned memory that holds streams up until the host raises it. */
final class HostFlag implements AutoCloseable {

    private final NativeMemory memory;
    private final AtomicBuffer word;

    HostFlag(CudaDevice device) {
        memory = CudaMemory.allocatePinned(device, Long.BYTES);
        word = new AtomicBuffer(memory, 0, Long.BYTES);
        word.putIntVolatile(0, 0);
    }

    /** Lets what is queued on a stream from now on wait. */
    void holdUp(CudaStream stream) {
        Gpus.waitValue32(stream, memory.address(), 1);
    }

    void raise() {
        word.putIntVolatile(0, 1);
    }

    int value() {
        return word.getIntVolatile(0);
    }

    long address() {
        return memory.address();
    }

    /** Raises the flag, so that a failed test holds nothing up. */
    @Override
    public void close() {
        raise();
        memory.close();
    }
}
