// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

/** A queue of copies between GPUs: a CUDA stream, for code that does not bind the CUDA driver. */
public interface CopyQueue {

    /**
     * Queues a copy.
     *
     * @param byteSize the number of bytes; 0 does nothing
     */
    void copyAsync(long destination, long source, long byteSize);
}
