/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

/**
 * How often a thread has called native libraries; what an operation costs is the difference between
 * after and before it.
 *
 * @param driver calls of the CUDA driver
 * @param other calls of libtorch, NCCL and cuBLASLt
 */
public record NativeCalls(long driver, long other) {

    /**
     * Returns what the calling thread has called so far.
     *
     * @return the numbers; nothing counts yet, so they are 0
     */
    public static NativeCalls ofThread() {
        return new NativeCalls(0, 0);
    }
}
