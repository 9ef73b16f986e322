/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import org.djlx.nativeops.host.CallingThread;

/**
 * How often a thread has called native code through this package, for finding out what an operation
 * costs the host.
 *
 * @param driver calls of the CUDA driver
 * @param other calls of libtorch, cuBLASLt and NCCL
 */
public record NativeCalls(long driver, long other) {

    /**
     * Returns what the calling thread has called since it started.
     *
     * @return the numbers of calls
     */
    public static NativeCalls ofThread() {
        CallingThread thread = CallingThread.get();
        return new NativeCalls(thread.driverCalls, thread.otherCalls);
    }

    /** Notes a call of the calling thread that does not go to the driver. */
    public static void countOther() {
        CallingThread.get().otherCalls++;
    }

    /**
     * Returns the calls since an earlier time.
     *
     * @param earlier what {@link #ofThread} returned then, on the same thread
     * @return the difference
     */
    public NativeCalls since(NativeCalls earlier) {
        return new NativeCalls(driver - earlier.driver, other - earlier.other);
    }
}
