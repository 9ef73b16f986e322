// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import org.djlx.nativeops.host.SharedMemory;

/**
 * Copies bytes between tensors and shared memory, and counts them. One thread copies at a time; any
 * thread may read the count.
 */
final class Copies {

    private volatile long bytes;

    void copy(long destination, long source, long byteSize) {
        if (byteSize > 0) {
            SharedMemory.copy(destination, source, byteSize);
            bytes = bytes + byteSize;
        }
    }

    void copyInPlace(long destination, long source, long byteSize) {
        if (destination != source) {
            copy(destination, source, byteSize);
        }
    }

    /** Returns the number of bytes copied so far. */
    long bytes() {
        return bytes;
    }
}
