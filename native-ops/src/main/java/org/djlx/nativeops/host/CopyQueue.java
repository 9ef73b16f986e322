// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

/** A queue of copies between GPUs: a CUDA stream, for code that does not bind the CUDA driver. */
public interface CopyQueue {

    /** Queues a copy; no-op for 0 bytes. */
    void copyAsync(long destination, long source, long byteSize);
}
